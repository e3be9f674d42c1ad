"""Sessions' shapes have the percentiles that they are said to have; loads have so many users when they should."""

from __future__ import annotations

import random

import pytest

from loadtest.figures import percentile
from loadtest.shapes import GAP_S, OUTPUT_SIZES, OUTPUT_TOKENS, TURNS, Draws, Happening, Load, output_size, users_at

DRAWS = 20_000


@pytest.mark.parametrize(
    ("distribution", "percent", "value"),
    [(GAP_S, 50, 4), (GAP_S, 90, 37), (OUTPUT_TOKENS, 50, 458), (OUTPUT_TOKENS, 99, 8600), (TURNS, 50, 31)],
)
def test_draws_have_the_percentiles_of_real_traffic(distribution, percent: int, value: float) -> None:
    rng = random.Random(1)
    drawn = [distribution.draw(rng) for _ in range(DRAWS)]
    assert percentile(drawn, percent) == pytest.approx(value, rel=0.12)
    assert max(drawn) <= distribution.most


def test_scales_shrink_tokens_and_gaps_but_not_turns() -> None:
    large, small = (Draws(random.Random(3), *scales) for scales in ((1.0, 1.0), (0.1, 0.5)))
    assert large.turns() == small.turns()
    assert small.opening_tokens() == pytest.approx(0.1 * large.opening_tokens(), rel=0.01)
    one, other = large.step(), small.step()
    assert other.gap_s == pytest.approx(0.5 * one.gap_s)
    assert other.new_tokens < one.new_tokens
    assert other.happening == one.happening


def test_everything_happens_and_mostly_nothing() -> None:
    draws = Draws(random.Random(5), 1.0, 1.0)
    happened = [draws.step().happening for _ in range(2000)]
    assert set(happened) == set(Happening)
    assert 0.88 < happened.count(Happening.NOTHING) / 2000 < 0.94


@pytest.mark.parametrize(("tokens", "size"), [(0.0, 8), (22, 16), (23, 32), (458, 512), (10**6, 32768)])
def test_a_length_becomes_the_nearest_that_the_script_has(tokens: float, size: int) -> None:
    assert output_size(tokens) == size
    assert size in OUTPUT_SIZES


@pytest.mark.parametrize(
    ("load", "shares", "users"),
    [
        (Load.STEADY, (0.0, 0.05, 0.1, 0.9), [1, 50, 100, 100]),
        (Load.SOAK, (0.0, 0.1, 0.2, 0.9), [1, 50, 100, 100]),
        (Load.RAMP, (0.0, 0.25, 1.0), [1, 25, 100]),
        (Load.SPIKE, (0.0, 0.39, 0.5, 0.61), [25, 25, 100, 25]),
    ],
)
def test_users_over_time(load: Load, shares: tuple[float, ...], users: list[int]) -> None:
    assert [users_at(load, share, 100) for share in shares] == users
