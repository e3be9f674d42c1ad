"""Stop strings: found across pieces, nothing more held back than may begin one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.parsing.stop_strings import StopStrings
from tests.support.feeding import assert_linear, same_however_fed


def through(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    machine = StopStrings(stops)
    text = "".join(machine.feed(piece) for piece in pieces) + machine.finish()
    return text, machine.hit


def by_definition(stops: list[str], text: str) -> tuple[str, str | None]:
    """The match that ends first; of those, the one that begins first."""
    for end in range(1, len(text) + 1):
        found = max((stop for stop in stops if stop and text[:end].endswith(stop)), key=len, default=None)
        if found is not None:
            return text[: end - len(found)], found
    return text, None


@pytest.mark.parametrize(
    ("stops", "text", "visible", "hit"),
    [
        (["END"], "one END two", "one ", "END"),
        (["END"], "one EN two E", "one EN two E", None),
        (["\n\n"], "a\nb\n\nc", "a\nb", "\n\n"),
        (["ab", "b"], "xab", "x", "ab"),
        (["abc", "b"], "xabc", "xa", "b"),
        (["aab"], "aaab", "a", "aab"),
        (["终止"], "开始终止结束", "开始", "终止"),
        (["<|im_end|>"], "done<|im_end|>", "done", "<|im_end|>"),
        ([], "anything", "anything", None),
        ([""], "anything", "anything", None),
        (["x"], "", "", None),
    ],
)
def test_cases(stops: list[str], text: str, visible: str, hit: str | None) -> None:
    assert same_however_fed(lambda pieces: through(stops, pieces), text) == (visible, hit)


@given(st.lists(st.text("ab<", max_size=4), max_size=4), st.text("ab<", max_size=40), st.integers(0, 9))
def test_the_definition(stops: list[str], text: str, seed: int) -> None:
    assert same_however_fed(lambda pieces: through(stops, pieces), text, seed) == by_definition(stops, text)


@given(st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.text("abc", max_size=20))
def test_only_what_may_begin_a_stop_string_is_held(stops: list[str], text: str) -> None:
    machine = StopStrings(stops)
    passed = "".join(machine.feed(char) for char in text)
    if machine.hit is None:
        held = text.removeprefix(passed)
        begun = [n for n in range(len(text) + 1) if any(stop.startswith(text[len(text) - n :]) for stop in stops)]
        assert len(held) == max(begun)


def test_nothing_passes_after_the_hit() -> None:
    machine = StopStrings(["stop"])
    assert machine.feed("a stop b") == "a "
    assert machine.feed(" and more") == ""
    assert machine.finish() == ""
    assert machine.hit == "stop"


def test_cost_is_linear_in_text_that_almost_matches() -> None:
    stop = "a" * 50 + "b"
    assert_linear(lambda size: through([stop], list("a" * size)), 300)
