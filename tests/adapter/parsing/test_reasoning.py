"""``<think>`` ... ``</think>`` before the visible text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.parsing import Markers
from adapter.parsing.base import ReplyContext, UnknownParser
from adapter.parsing.reasoning import MAX_LEAD, REASONING_FAMILIES, require_reasoning_family
from adapter.types import ReasoningDelta, TextDelta
from tests.support.feeding import assert_linear, same_however_fed


def through(pieces: list[str], opened: bool = False, name: str = "think") -> tuple[str, str]:
    """(reasoning, text); all reasoning comes before all text."""
    parser = require_reasoning_family(name).parser(ReplyContext(reasoning_opened=opened))
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    kinds = [type(event) for event in events]
    assert kinds == sorted(kinds, key=[ReasoningDelta, TextDelta].index)
    assert all(event.text for event in events)
    return tuple("".join(event.text for event in events if type(event) is kind) for kind in (ReasoningDelta, TextDelta))


CASES = [
    ("<think>reason here</think>visible", "reason here", "visible"),
    ("<think>\nreason\n</think>\n\nvisible", "reason", "visible"),
    ("\n<think>\n\na\n\nb\n\n</think>\nvisible\n\nmore\n", "a\n\nb", "visible\n\nmore\n"),
    ("<think>\n\n</think>\n\nvisible", "", "visible"),
    ("<think></think>", "", ""),
    ("<think>never closed", "never closed", ""),
    ("<think>never closed\n</thi", "never closed\n</thi", ""),
    ("<think>cut after newline\n\n", "cut after newline", ""),
    ("<think>a < b, </think is no tag, <think> neither</think>v", "a < b, </think is no tag, <think> neither", "v"),
    ("<think>a</think>then <think>b</think>", "a", "then <think>b</think>"),
    ("no tags at all", "", "no tags at all"),
    ("text, then <think>literal</think>", "", "text, then <think>literal</think>"),
    ("</think>closing only", "", "</think>closing only"),
    ("<thinking>is another tag", "", "<thinking>is another tag"),
    ("<thi", "", "<thi"),
    ("\n\n  leading space is text", "", "\n\n  leading space is text"),
    ("\n ", "", "\n "),
    ("", "", ""),
    ("<think>call <tool_call>{}</tool_call> in mind</think>x", "call <tool_call>{}</tool_call> in mind", "x"),
    (" " * MAX_LEAD + "<think>a</think>b", "a", "b"),
    (" " * (MAX_LEAD + 1) + "<think>a</think>b", "", " " * (MAX_LEAD + 1) + "<think>a</think>b"),
    ("<think>思考😀</think>答案😀", "思考😀", "答案😀"),
]


@pytest.mark.parametrize(("output", "reasoning", "text"), CASES)
def test_opened_in_the_output(output: str, reasoning: str, text: str) -> None:
    assert same_however_fed(through, output) == (reasoning, text)


@pytest.mark.parametrize(
    ("output", "reasoning", "text"),
    [
        ("reason\n</think>\n\nvisible", "reason", "visible"),
        ("\nreason</think>visible", "reason", "visible"),
        ("<think>\nrepeated tag\n</think>\nvisible", "repeated tag", "visible"),
        ("</think>visible", "", "visible"),
        ("all of it", "all of it", ""),
        ("\n\n<thi", "<thi", ""),
        ("\n", "", ""),
        ("", "", ""),
    ],
)
def test_opened_in_the_prompt(output: str, reasoning: str, text: str) -> None:
    assert same_however_fed(lambda pieces: through(pieces, opened=True), output) == (reasoning, text)


@pytest.mark.parametrize("output", [case[0] for case in CASES])
def test_none_passes_all_as_text(output: str) -> None:
    assert same_however_fed(lambda pieces: through(pieces, name="none"), output) == ("", output)


def test_the_compatible_name() -> None:
    assert through(["<think>reason here</think>visible"], name="qwen3") == ("reason here", "visible")


ALPHABET = st.lists(st.sampled_from(["<think>", "</think>", "\n", " ", "<", "</", "th", "ink>", "a", "é"])).map("".join)


def by_definition(output: str, opened: bool) -> tuple[str, str]:
    opening = re.match(rf"\s{{0,{MAX_LEAD}}}<think>", output)
    if opening is None and not opened:
        return "", output
    reasoning, _, text = output[opening.end() if opening else 0 :].partition("</think>")
    return reasoning.strip("\n"), text.lstrip("\n")


@given(ALPHABET, st.booleans(), st.integers(0, 9))
def test_the_definition(output: str, opened: bool, seed: int) -> None:
    assert same_however_fed(lambda pieces: through(pieces, opened), output, seed) == by_definition(output, opened)


def test_reasoning_streams_while_it_is_written() -> None:
    parser = require_reasoning_family("think").parser(ReplyContext())
    seen = [parser.feed(piece) for piece in ("<think>", "a", "b", "</", "think>", "c")]
    assert seen == [[], [ReasoningDelta("a")], [ReasoningDelta("b")], [], [], [TextDelta("c")]]


def test_inside_and_settled_follow_the_tags() -> None:
    parser = require_reasoning_family("think").parser(ReplyContext())
    states = [
        (parser.feed(piece), parser.inside, parser.settled)[1:] for piece in ("<think>", "a", "</think>", "\n", "b")
    ]
    assert states == [(True, False), (True, False), (False, False), (False, False), (False, True)]


@pytest.mark.parametrize("unit", ["\n", "</thin", "a", "<think>"])
def test_cost_is_linear(unit: str) -> None:
    assert_linear(lambda size: through(list("<think>a" + unit * size)), 300)


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>assistant\n", False),
        ("<|im_start|>user\n<think><|im_end|>\n<|im_start|>assistant\n", False),
        ("", False),
    ],
)
def test_whether_the_prompt_opens_it(prompt: str, opened: bool) -> None:
    assert require_reasoning_family("think").opened_by(prompt, Markers()) is opened
    assert not require_reasoning_family("none").opened_by(prompt, Markers())


def test_only_the_token_opens_it_where_there_is_one() -> None:
    markers = Markers({"<think>": 7, "</think>": 8})
    think = require_reasoning_family("think")
    assert think.opened_by("assistant\n" + markers.look("<think>") + "\n", markers)
    assert not think.opened_by("assistant\n<think>\n", markers)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownParser, match="unknown reasoning parser 'thunk'") as caught:
        require_reasoning_family("thunk")
    assert all(name in str(caught.value) for name in REASONING_FAMILIES)
