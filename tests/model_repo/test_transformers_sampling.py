"""The draw of one token, against slow references that follow the definitions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch

from model_repo.transformers.sampling import NUCLEUS_WIDTH, TokenHistory, draw, gumbel_noise, penalised, truncated

VOCAB = 300
MASK = (1 << 64) - 1


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Vectors this small are not worth a second thread, least of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Values:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 7
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


def logits_of(seed: int, vocab: int = VOCAB, spread: float = 2.0) -> torch.Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * spread


def tokens(logits: torch.Tensor, values: Values, count: int) -> list[int]:
    return [int(draw(logits, values, position, None, None)) for position in range(count)]


def splitmix64(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_the_finaliser_gives_the_published_numbers() -> None:
    """The first outputs of SplitMix64 seeded with 1234567, as its authors' program prints them."""
    gamma = 0x9E3779B97F4A7C15
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [splitmix64((1234567 + (i + 1) * gamma) & MASK) for i in range(3)] == expected


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_noise_is_the_hash_of_seed_position_and_token(seed: int) -> None:
    gamma, position, ids = 0x9E3779B97F4A7C15, 12345, [0, 1, 49151, 200_000]
    key = splitmix64((splitmix64(seed) + position * gamma) & MASK)
    uniforms = [((splitmix64((token * gamma + key) & MASK) >> 32) + 0.5) / 2**32 for token in ids]
    expected = [-math.log(-math.log1p(-u)) for u in uniforms]
    assert gumbel_noise(seed, position, torch.tensor(ids)).tolist() == pytest.approx(expected, abs=1e-4)


def test_draws_follow_the_softmax() -> None:
    logits, count = logits_of(1, vocab=8, spread=1.0), 5_000
    observed = torch.bincount(torch.tensor(tokens(logits, Values(), count)), minlength=8)
    expected = logits.softmax(0) * count
    # 7 degrees of freedom: 24.3 is the 99.9 % point of chi squared. The draws are fixed, so this cannot flicker.
    assert ((observed - expected) ** 2 / expected).sum() < 24.3


def test_temperature_scales_the_distribution() -> None:
    logits, count = logits_of(2, vocab=8, spread=1.0), 5_000
    observed = torch.bincount(torch.tensor(tokens(logits, Values(temperature=0.5), count)), minlength=8)
    expected = (logits / 0.5).softmax(0) * count
    assert ((observed - expected) ** 2 / expected).sum() < 24.3


def test_seed_and_position_decide() -> None:
    flat = torch.zeros(VOCAB)
    assert tokens(flat, Values(seed=1), 50) == tokens(flat, Values(seed=1), 50)
    assert tokens(flat, Values(seed=1), 50) != tokens(flat, Values(seed=2), 50)
    assert len(set(tokens(flat, Values(seed=1), 50))) > 25


def test_rounding_noise_in_the_logits_hardly_ever_changes_a_draw() -> None:
    """Another batch shape changes each logit by about 1e-5. An inverse CDF over this vocabulary would change most."""
    vocab, count = 5_000, 200
    logits = logits_of(3, vocab=vocab, spread=0.5)
    noisy = logits + 1e-5 * logits_of(4, vocab=vocab, spread=1.0)
    pairs = zip(tokens(logits, Values(), count), tokens(noisy, Values(), count), strict=True)
    assert sum(a != b for a, b in pairs) <= 1


@pytest.mark.parametrize(
    "values", [Values(temperature=0), Values(top_k=1), Values(top_p=1e-6), Values(temperature=1e-38)]
)
def test_greedy_in_every_spelling(values: Values) -> None:
    for seed in range(20):
        logits = logits_of(seed)
        assert tokens(logits, values, 3) == [int(logits.argmax())] * 3


@pytest.mark.parametrize("top_k", [1, 2, 17, VOCAB, VOCAB + 5])
def test_top_k_keeps_the_k_best(top_k: int) -> None:
    logits = logits_of(5)
    ids, scores = truncated(logits, top_k, 1.0)
    assert set(ids.tolist()) == set(logits.argsort(descending=True)[:top_k].tolist())
    assert scores.tolist() == logits[ids].tolist()


def nucleus(logits: torch.Tensor, top_k: int, top_p: float) -> set[int]:
    """By the definition: the best tokens in order, until their mass reaches top_p."""
    order = logits.argsort(descending=True).tolist()[: top_k or logits.numel()]
    mass = [math.exp(float(logits[token])) for token in order]
    kept, reached = set(), 0.0
    for token, weight in zip(order, mass, strict=True):
        kept.add(token)
        reached += weight / sum(mass)
        if reached >= top_p:
            break
    return kept


@pytest.mark.parametrize("top_k", [0, 20])
@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.9, 0.999])
def test_top_p_keeps_the_nucleus_of_what_top_k_left(top_k: int, top_p: float) -> None:
    for seed in range(10):
        logits = logits_of(seed)
        ids, scores = truncated(logits, top_k, top_p)
        assert set(ids.tolist()) == nucleus(logits, top_k, top_p)
        assert scores.tolist() == logits[ids].tolist()


def test_a_nucleus_wider_than_the_first_look() -> None:
    logits = logits_of(6, vocab=4 * NUCLEUS_WIDTH, spread=0.1)
    ids, _ = truncated(logits, 0, 0.9)
    assert len(ids) > NUCLEUS_WIDTH
    assert set(ids.tolist()) == nucleus(logits, 0, 0.9)


def slow_penalties(logits: list[float], values: Values, prompt: list[int], output: list[int]) -> list[float]:
    changed = []
    for token, logit in enumerate(logits):
        if token in prompt or token in output:
            factor = values.repetition_penalty
            logit = logit / factor if logit > 0 else logit * factor
        logit -= values.frequency_penalty * output.count(token)
        logit -= values.presence_penalty * (token in output)
        changed.append(logit)
    return changed


@pytest.mark.parametrize(
    "values",
    [
        Values(repetition_penalty=1.3),
        Values(repetition_penalty=0.8),
        Values(presence_penalty=0.7),
        Values(frequency_penalty=0.4),
        Values(repetition_penalty=1.2, presence_penalty=-0.5, frequency_penalty=1.5),
    ],
)
def test_penalties_change_logits_by_the_formula(values: Values) -> None:
    logits, prompt, output = logits_of(8, vocab=12), [1, 2, 2, 3], [3, 5, 5, 5, 9]
    history = TokenHistory(prompt, 12, "cpu")
    for token in output:
        history.add(token)
    before = logits.clone()
    changed = penalised(logits, values, history)
    assert changed.tolist() == pytest.approx(slow_penalties(before.tolist(), values, prompt, output), abs=1e-5)
    assert torch.equal(logits, before)


def test_penalties_reach_the_draw() -> None:
    logits = torch.tensor([1.0, 0.9, 0.0])
    history = TokenHistory([2], 3, "cpu")
    history.add(0)
    greedy = Values(temperature=0)
    assert int(draw(logits, greedy, 1, history, None)) == 0
    assert int(draw(logits, replace(greedy, presence_penalty=0.2), 1, history, None)) == 1


def test_banned_tokens_never_come() -> None:
    logits = torch.tensor([5.0, 4.0, 0.0])
    banned = torch.tensor([0])
    assert int(draw(logits, Values(temperature=0), 0, None, banned)) == 1
    drawn = {int(draw(logits, Values(), position, None, banned)) for position in range(500)}
    assert drawn == {1, 2}
    assert torch.equal(logits, torch.tensor([5.0, 4.0, 0.0]))


@pytest.mark.parametrize("temperature", [1e-45, 1.0, 3.4e38])
@pytest.mark.parametrize("penalty", [-3.4e38, 1e-38, 3.4e38])
def test_the_most_extreme_valid_values_still_draw_a_token(temperature: float, penalty: float) -> None:
    values = Values(
        temperature=temperature,
        top_p=0.9,
        repetition_penalty=abs(penalty),
        presence_penalty=penalty,
        frequency_penalty=penalty,
    )
    history = TokenHistory(range(VOCAB), VOCAB, "cpu")
    for token in (3, 3, 4):
        history.add(token)
    assert 0 <= int(draw(logits_of(9), values, 0, history, None)) < VOCAB
