"""Tool calls of Kimi K2."""

from __future__ import annotations

from typing import Any

import pytest

from adapter.parsing.base import ReplyContext
from adapter.parsing.tools.kimi import SECTION as MARKERS
from adapter.parsing.tools.kimi import KimiCalls
from adapter.types import ParsedModelOutput, TextDelta, ToolCallDelta, ToolCallEnd, ToolCallStart, ToolUse
from tests.adapter.parsing.marked_replies import both_ways, by_text, by_tokens, markers_of

SECTION, END_SECTION = MARKERS.section, MARKERS.end_section
USE = ToolUse("lookup", {"q": "x"})


def call(head: str = "functions.lookup:0", arguments: str = '{"q": "x"}', end: str = "<|tool_call_end|>") -> str:
    return f"<|tool_call_begin|>{head}<|tool_call_argument_begin|>{arguments}{end}"


def section(*calls: str) -> str:
    return SECTION + "".join(calls) + END_SECTION


def output(text: str, *uses: ToolUse, reasoning: str = "", ill_formed: bool = False) -> ParsedModelOutput:
    return ParsedModelOutput(reasoning=reasoning, text=text, tool_uses=uses, ill_formed=ill_formed)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (section(call()), output("", USE)),
        ("I look. " + section(call(), call()) + " \n", output("I look. ", USE, USE)),
        (section(call()) + "\nDone.", output("\nDone.", USE)),
        (section("\n", call(), "\n", call(), "\n"), output("", USE, USE)),
        (section(call("lookup:3")), output("", USE)),
        (section(call("functions.lookup")), output("", USE)),
        (section(call(" functions.lookup:12 ")), output("", USE)),
        (section(call("functions.a.b:c:1")), output("", ToolUse("a.b:c", {"q": "x"}))),
        (section(call(arguments="{}")), output("", ToolUse("lookup", {}))),
        (section(call(arguments="")), output("", ToolUse("lookup", {}))),
        (section(call(arguments=' {"q": "x"}\n')), output("", USE)),
        (section(call(end=""), call()), output("", USE, USE)),
        (section(call(end="")), output("", USE)),
        (call() + call(), output("", USE, USE)),
        (call() + "\nDone.", output("\nDone.", USE)),
        (SECTION + call(), output("", USE)),
        (section(call()) + section(call()), output("", USE, USE)),
    ],
)
def test_well_formed(text: str, expected: ParsedModelOutput) -> None:
    assert both_ways(text, "kimi_k2") == expected


@pytest.mark.parametrize(
    "text",
    [
        SECTION,
        END_SECTION,
        section(),
        section("\n"),
        f"the {SECTION} marker",
        f"{SECTION} and {END_SECTION} in prose",
        "<|tool_call_end|>",
        "<|tool_call_argument_begin|>",
        "<|tool_ca",
        " \n ",
    ],
)
def test_text_that_is_no_call_is_untouched(text: str) -> None:
    assert both_ways(text, "kimi_k2") == output(text)


@pytest.mark.parametrize(
    "text",
    [
        "<|tool_call_begin|>",
        "<|tool_call_begin|>functions.lookup:0",
        "<|tool_call_begin|>functions.lookup:0<|tool_call_argument_begin|>",
        "<|tool_call_begin|>functions.lookup:0<|tool_call_argument_begin|>{ ",
        "<|tool_call_begin|>functions.lookup:0<|tool_call_end|>",
        call(head=""),
        call(head="functions.:0"),
        call(head="x" * 2000),
        SECTION + "<|tool_call_begin|>prose",
    ],
)
def test_without_a_name_or_arguments_it_stays_text(text: str) -> None:
    assert both_ways("Hm. " + text, "kimi_k2") == output("Hm. " + text, ill_formed=True)


def test_a_call_that_was_none_does_not_hide_the_next() -> None:
    text = "<|tool_call_begin|>oops" + call()
    assert both_ways(text, "kimi_k2") == output("<|tool_call_begin|>oops", USE, ill_formed=True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"q": "x", "n": tru}', {"q": None, "n": None}),
        ('{"q": "x', {"q": None}),
        ("[1]", {}),
        ("oops", {}),
        ('{"q": "x"} oops', {"q": "x"}),
        ('{"q": "x"}}', {"q": "x"}),
        ("{q: 1}", {}),
    ],
)
def test_malformed_arguments_are_safe_and_say_so(arguments: str, expected: dict[str, Any]) -> None:
    text = section(call(arguments=arguments), call())
    assert by_tokens(text, "kimi_k2") == output("", ToolUse("lookup", expected), USE, ill_formed=True)


def test_a_marker_in_a_string_is_text_only_where_it_is_no_token() -> None:
    text = section(call(arguments='{"q": "<|tool_call_end|>"}'))
    assert by_text(text, "kimi_k2") == output("", ToolUse("lookup", {"q": "<|tool_call_end|>"}))
    assert by_tokens(text, "kimi_k2").tool_uses == (ToolUse("lookup", {"q": None}),)


def test_reasoning_before_calls() -> None:
    text = "<think>I call.</think>Now." + section(call())
    assert both_ways(text, "kimi_k2", reasoning_parser="think") == output("Now.", USE, reasoning="I call.")


def test_each_piece_gives_what_it_settles() -> None:
    markers = markers_of("kimi_k2")
    parser = KimiCalls(ReplyContext(markers=markers))
    pieces = [
        "A",
        *map(markers.look, (SECTION, MARKERS.call)),
        "functions.f:0",
        markers.look(MARKERS.arguments),
        '{"a',
        '": "b',
        'c"',
        "}",
    ]
    assert [parser.feed(piece) for piece in pieces] == [
        [TextDelta("A")],
        [],
        [],
        [],
        [],
        [ToolCallStart("f"), ToolCallDelta('{"a')],
        [ToolCallDelta('": "b')],
        [ToolCallDelta('c"')],
        [ToolCallDelta("}"), ToolCallEnd(ToolUse("f", {"a": "bc"}))],
    ]
    assert [parser.feed(markers.look(MARKERS.end_call)), parser.feed(markers.look(END_SECTION)), parser.finish()] == [
        [],
        [],
        [],
    ]
