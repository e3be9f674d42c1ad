"""Replies of Gemma 4 and FunctionGemma."""

from __future__ import annotations

from typing import Any

import pytest

from adapter.parsing.base import ReplyContext
from adapter.parsing.tools.gemma import FUNCTION_GEMMA, GEMMA4
from adapter.types import (
    ParsedModelOutput,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolUse,
)
from tests.adapter.parsing.marked_replies import TOOLS, both_ways, by_text, by_tokens, marked, markers_of, run_marked

A = ToolUse("lookup", {"q": "x", "n": 3})
CALL = '<|tool_call>call:lookup{q:<|"|>x<|"|>,n:3}<tool_call|>'


def output(text: str, *uses: ToolUse, reasoning: str = "", ill_formed: bool = False) -> ParsedModelOutput:
    return ParsedModelOutput(reasoning=reasoning, text=text, tool_uses=uses, ill_formed=ill_formed)


def with_arguments(arguments: str) -> str:
    return f"<|tool_call>call:lookup{{{arguments}}}<tool_call|>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CALL, output("", A)),
        (f"I look.{CALL}{CALL}<|tool_response>", output("I look.", A, A)),
        (f"{CALL}\n{CALL}\n", output("", A, A)),
        (f"{CALL}\nDone.", output("\nDone.", A)),
        (CALL.replace("<tool_call|>", ""), output("", A)),
        (CALL.replace("<tool_call|>", "") + CALL, output("", A, A)),
        (CALL.replace("call:lookup", " call: lookup "), output("", A)),
        ("<|channel>thought\nI call.<channel|>" + CALL, output("", A, reasoning="I call.")),
        ("<|channel>thought\n<channel|>Hello", output("Hello")),
        ("<|channel>thought<channel|>Hello", output("Hello")),
        ("<|channel>other\nHm.<channel|>Hello", output("Hello", reasoning="other\nHm.")),
        ("<|channel>thought\nA<channel|>B<|channel>thought\nC<channel|>D", output("BD", reasoning="AC")),
        ("<|channel>thought\nnever closed", output("", reasoning="never closed")),
        ("<|channel>tho", output("")),
        ("<|channel>", output("")),
    ],
)
def test_well_formed(text: str, expected: ParsedModelOutput) -> None:
    assert both_ways(text, "gemma4") == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", {}),
        (" ", {}),
        ('a:<|"|><|"|>', {"a": ""}),
        ('a:<|"|>{,}:[]"\\\n<|"|>', {"a": '{,}:[]"\\\n'}),
        ('<|"|>a b<|"|>:1', {"a b": 1}),
        ("a:1,b:-2.5,c:1e-05", {"a": 1, "b": -2.5, "c": 1e-05}),
        ("a:true,b:false,c:null,d:None", {"a": True, "b": False, "c": None, "d": None}),
        ("a:bare words,b:x", {"a": "bare words", "b": "x"}),
        (
            'a:{b:{c:<|"|>x<|"|>},d:[]},e:[1,<|"|>y<|"|>,{f:2}]',
            {"a": {"b": {"c": "x"}, "d": []}, "e": [1, "y", {"f": 2}]},
        ),
        (' a : 1 , b : <|"|>x<|"|> ', {"a": 1, "b": "x"}),
        ("n:123456789012345678901234567890", {"n": 123456789012345678901234567890}),
    ],
)
def test_arguments(arguments: str, expected: dict[str, Any]) -> None:
    assert both_ways(with_arguments(arguments), "gemma4") == output("", ToolUse("lookup", expected))
    plain = f"<start_function_call>call:lookup{{{arguments}}}<end_function_call>".replace('<|"|>', "<escape>")
    assert both_ways(plain, "function_gemma") == output("", ToolUse("lookup", expected))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('q:<|"|>x<|"|>,n', {"q": None}),
        ('q:<|"|>x<|"|> n:1', {"q": None}),
        ('q:<|"|>x<|"|>,n:[1}', {"q": None, "n": None}),
        ("q:1,n:" + "[" * 300, {"q": None, "n": None}),
        ("q:1,n:" + "x" * 300, {"q": None, "n": None}),
        ('q:1,n:x<|"|>', {"q": None, "n": None}),
        ("q:}", {"q": None}),
    ],
)
def test_malformed_arguments_are_safe_and_say_so(arguments: str, expected: dict[str, Any]) -> None:
    text = with_arguments(arguments) + CALL
    assert by_tokens(text, "gemma4") == output("", ToolUse("lookup", expected), A, ill_formed=True)


@pytest.mark.parametrize(
    "text",
    [
        "<|tool_call>",
        "<|tool_call>call:lookup",
        "<|tool_call>call:lookup{",
        "<|tool_call>lookup{q:1}",
        "<|tool_call>call:{q:1}",
        "<|tool_call>" + "x" * 1000,
        "<|tool_call>call:lookup{{",
    ],
)
def test_without_a_name_or_arguments_it_stays_text(text: str) -> None:
    assert both_ways("Hm. " + text, "gemma4") == output("Hm. " + text, ill_formed=True)


def test_what_stands_between_the_arguments_and_the_end_is_not_shown() -> None:
    text = CALL.replace("<tool_call|>", " oops<tool_call|>") + "Done."
    assert both_ways(text, "gemma4") == output("Done.", A, ill_formed=True)


@pytest.mark.parametrize("text", ["<tool_call|>", '<|"|>', "<channel|>", "<|tool_response>", "{a:1}", " \n ", ""])
def test_text_that_is_no_call_is_untouched(text: str) -> None:
    assert both_ways("x" + text, "gemma4") == output("x" + text)


def test_a_marker_in_a_string_is_text_only_where_it_is_no_token() -> None:
    text = with_arguments('q:<|"|><tool_call|><|"|>')
    assert by_text(text, "gemma4") == output("", ToolUse("lookup", {"q": "<tool_call|>"}))
    assert by_tokens(text, "gemma4").tool_uses == (ToolUse("lookup", {"q": None}),)


@pytest.mark.parametrize(
    ("prompt", "reply", "expected"),
    [
        ("<|turn>model\n", "Hello", output("Hello")),
        ("<|turn>model\n<|channel>thought\n", "Hm.<channel|>Hello", output("Hello", reasoning="Hm.")),
        ("<|turn>model\n<|channel>thought\n<channel|>", "Hello", output("Hello")),
        ("<|turn>model\n<|channel>", "thought\nHm.", output("", reasoning="Hm.")),
        ("<|turn>model\n<|channel>thought\nFirst", " then.", output("", reasoning=" then.")),
    ],
)
def test_the_prompt_may_have_begun_the_reasoning(prompt: str, reply: str, expected: ParsedModelOutput) -> None:
    markers = markers_of("gemma4")
    text, tail = (marked(part, markers, GEMMA4.markers) for part in (reply, prompt))
    assert run_marked(list(text), "gemma4", markers, prompt_tail=tail)[1] == expected


def test_each_piece_gives_what_it_settles() -> None:
    markers = markers_of("gemma4")
    parser = GEMMA4.parser(ReplyContext(TOOLS, markers))
    look = markers.look
    pieces = [
        look("<|channel>"),
        "thought\nH",
        "m.",
        look("<channel|>"),
        "A",
        look("<|tool_call>"),
        "call:lookup{",
        "q",
        ":",
    ]
    pieces += [look('<|"|>'), "x{", look('<|"|>'), ",n:1", "0", "}", look("<tool_call|>")]
    inside = []
    seen = []
    for piece in pieces:
        seen.append(parser.feed(piece))
        inside.append(parser.inside)
    assert seen == [
        [],
        [ReasoningDelta("H")],
        [ReasoningDelta("m.")],
        [],
        [TextDelta("A")],
        [],
        [],
        [],
        [ToolCallStart("lookup"), ToolCallDelta('{"q":')],
        [ToolCallDelta('"')],
        [ToolCallDelta("x{")],
        [ToolCallDelta('"')],
        [ToolCallDelta(',"n":')],
        [],
        [ToolCallDelta("10}"), ToolCallEnd(ToolUse("lookup", {"q": "x{", "n": 10}))],
        [],
    ]
    assert inside == [True, True, True] + [False] * 13


def test_function_gemma_has_no_reasoning() -> None:
    parser = FUNCTION_GEMMA.parser(ReplyContext(TOOLS, prompt_tail="<|channel>thought\n"))
    assert parser.feed("Hello") == [TextDelta("Hello")]
