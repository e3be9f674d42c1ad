"""JSON tool calls of Hermes, Qwen2.5 and Qwen3."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.parsing.base import ReplyContext
from adapter.parsing.tools.hermes import hermes_calls
from adapter.types import ParsedModelOutput, TextDelta, ToolCallDelta, ToolCallEnd, ToolCallStart, ToolUse
from tests.adapter.parsing.replies import events_and_output, parsed, run
from tests.adapter.parsing.test_json_scanner import OBJECTS, STYLES
from tests.support.feeding import assert_linear


def call(name: str, arguments: Any, **style: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, **style)}\n</tool_call>"


def output(text: str, *uses: tuple[str, dict[str, Any]], ill_formed: bool = False) -> ParsedModelOutput:
    return ParsedModelOutput(text=text, tool_uses=tuple(ToolUse(*use) for use in uses), ill_formed=ill_formed)


A = ("read_file", {"path": "a.txt"})
B = ("unheard_of", {"x": [1, {"y": None}], "z": "终"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (call(*A), output("", A)),
        ("I read it.\n" + call(*A), output("I read it.", A)),
        ("I read it.\n\n" + call(*A), output("I read it.\n", A)),
        ("I read it. " + call(*A), output("I read it. ", A)),
        ("\n" + call(*A), output("", A)),
        ("Two.\n" + call(*A) + "\n" + call(*B), output("Two.", A, B)),
        (call(*A) + call(*B), output("", A, B)),
        (call(*A) + "\n\n \t" + call(*B) + " \n", output("", A, B)),
        (call(*A) + "\nDone.", output("\nDone.", A)),
        ("Before.\n" + call(*A) + "\nBetween.\n" + call(*B) + " after", output("Before.\nBetween. after", A, B)),
        (call(*B, ensure_ascii=False), output("", B)),
        (call(*B, indent=2), output("", B)),
        (call("pwd", {}), output("", ("pwd", {}))),
        (call("pwd", None), output("", ("pwd", {}))),
        ('<tool_call>{"name": "pwd"}</tool_call>', output("", ("pwd", {}))),
        ('<tool_call>{"arguments": {"path": "a.txt"}, "name": "read_file"}</tool_call>', output("", A)),
        (
            '<tool_call>{"id": [7], "arguments": {"path": "a.txt"}, "x": {}, "name": "read_file"}</tool_call>',
            output("", A),
        ),
        ('<tool_call>{"name": "read_file", "parameters": {"path": "a.txt"}}</tool_call>', output("", A)),
        ('<tool_call>{"na\\u006de": "read\\u005ffile", "arguments": {"path": "a.txt"}}</tool_call>', output("", A)),
        (call("read_file", json.dumps({"path": "a.txt"})), output("", A)),
        (call(*A).removesuffix("</tool_call>"), output("", A)),
        (call(*A).removesuffix("_call>"), output("", A)),
        (call(*A).removesuffix("</tool_call>") + call(*B), output("", A, B)),
        (call("say", {"text": "</tool_call> <tool_call>"}), output("", ("say", {"text": "</tool_call> <tool_call>"}))),
    ],
)
def test_well_formed(text: str, expected: ParsedModelOutput) -> None:
    assert parsed(text, "hermes") == expected


@pytest.mark.parametrize(
    "text",
    [
        "no call at all",
        "the <tool_call> tag in prose",
        "`<tool_call>` and `</tool_call>`",
        "<tool_call>",
        "<tool_call>\n",
        "</tool_call>",
        "<tool_cal",
        "a\n<tool_",
        "a\n\n<tool_call> \n",
        "<tool_call>[1]</tool_call>",
        "<tool_call>" + " " * 100 + '{"name": "x"}</tool_call>',
        "1 < 2\n<b>bold</b>\n",
        "<tool_call><tool_call><tool_call>",
        "<tool_call><function=unknown><parameter=a>b</parameter></function></tool_call>",
        " \n ",
        "",
    ],
)
def test_text_that_is_no_call_is_untouched(text: str) -> None:
    assert parsed(text, "hermes") == output(text)


@pytest.mark.parametrize(
    "literal",
    ["the <tool_call> tag", "<tool_call>", "<tool_call>{", "<tool_call><function=", "<tool_call><function=lookup>"],
)
def test_literal_markup_does_not_hide_the_call_behind_it(literal: str) -> None:
    result = parsed(f"{literal}\n{call(*A)}", "hermes")
    assert (result.text, result.tool_uses) == (literal, (ToolUse(*A),))


def broken(arguments: str, after: str = "}</tool_call>") -> str:
    return f'<tool_call>{{"name": "read_file", "arguments": {arguments}{after}'


@pytest.mark.parametrize(
    ("text", "expected_input"),
    [
        (broken('{"path": "a.txt", "n": tru}'), {"path": None, "n": None}),
        (broken('{"path": "a.txt" "n": 1}'), {"path": None}),
        (broken('{"path": "line\nline"}'), {"path": None}),
        (broken("{\"path\": 'a.txt'}"), {"path": None}),
        (broken('{"path": "a.txt",}'), {"path": None}),
        (broken('{"path": "unterminated}'), {"path": None}),
        (broken('{"path": "\\ud800"}'), {"path": None}),
        (broken('{"path": "a.txt", "n": [1e999, -1e400, 1]}'), {"path": "a.txt", "n": [None, None, 1]}),
        (broken('"{\\"n\\": 1e999}"'), {}),
        (broken('{"n": NaN}'), {"n": None}),
        (broken('{"a": ' + "[" * 200), {"a": None}),
        (broken('{"a": {"b": {"c": 1, "d'), {"a": None}),
        (broken("{path: 1}"), {}),
        (broken("[1, 2]"), {}),
        (broken("7"), {}),
        (broken('"not json"'), {}),
        (broken("tru"), {}),
        (broken("<nothing>"), {}),
        (broken('{"path": "a.txt"}', after="</tool_call>"), {"path": "a.txt"}),
        (broken('{"path": "a.txt"}', after=",}</tool_call>"), {"path": "a.txt"}),
        (broken('{"path": "a.txt"}', after="}}]</tool_call>"), {"path": "a.txt"}),
        (broken('"{\\"path\\": \\"a.txt\\"}"', after="</tool_call>"), {"path": "a.txt"}),
        (broken('{"path": "a.txt"}, "arguments": {"path": "b"', after="</tool_call>"), {"path": "a.txt"}),
        ('<tool_call>{"name": "read_file" "arguments": {}}</tool_call>', {}),
    ],
)
def test_a_malformed_call_is_safe_and_says_so(text: str, expected_input: dict[str, Any]) -> None:
    assert parsed("Hm.\n" + text + "\n" + call(*B), "hermes") == output(
        "Hm.", ("read_file", expected_input), B, ill_formed=True
    )


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"arguments": {"path": "a.txt"}}</tool_call>',
        '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        "<tool_call>{name: read_file}</tool_call>",
        '<tool_call>{"nam',
        '<tool_call>{"name": "read_file"',
        '<tool_call>{"name": "read_file", "arguments": ',
        '<tool_call>{"name": "read_file", "arguments": {',
        '<tool_call>{"name": "read_file", "arguments": {\n  ',
        '<tool_call>{"arguments": {"path": "a.txt"}, "na',
        "<tool_call>{}</tool_call>",
        "<tool_call>{ this is no JSON }</tool_call> more",
    ],
)
def test_without_a_name_or_arguments_it_stays_text(text: str) -> None:
    assert parsed("Hm.\n" + text, "hermes") == output("Hm.\n" + text, ill_formed=True)


@pytest.mark.parametrize("cut", range(1, len(call(*A))))
def test_cut_off_anywhere_nothing_half_can_run(cut: int) -> None:
    text = call(*A)[:cut]
    result = parsed("x" + text, "hermes")
    if result.tool_uses:
        assert result.text == "x"
        assert all(value is None for use in result.tool_uses for value in use.input.values()) or result.tool_uses == (
            ToolUse(*A),
        )
        assert result.ill_formed or '"a.txt"}}' in text
    else:
        assert result.text == "x" + text


def test_the_xml_format_inside_hermes() -> None:
    text = "Look.\n<tool_call>\n<function=lookup>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>\n" + call(
        *A
    )
    assert parsed(text, "hermes") == output("Look.", ("lookup", {"n": 3}), A)


def test_each_piece_gives_what_it_settles() -> None:
    parser = hermes_calls(ReplyContext())
    seen = [
        parser.feed(piece)
        for piece in ("A\n", '<tool_call>{"name": "f", "arguments": ', '{"p', '": "b', 'c"', "}", "}", "</tool_call>")
    ]
    assert seen == [
        [TextDelta("A")],
        [],
        [ToolCallStart("f"), ToolCallDelta('{"p')],
        [ToolCallDelta('": "b')],
        [ToolCallDelta('c"')],
        [ToolCallDelta("}")],
        [ToolCallEnd(ToolUse("f", {"p": "bc"}))],
        [],
    ]


@given(st.text(min_size=1, max_size=8), OBJECTS, STYLES, st.text(max_size=8), st.integers(0, 9))
def test_any_arguments_arrive_as_they_are(
    name: str, arguments: Any, style: dict[str, Any], before: str, seed: int
) -> None:
    text = before + "\n" + call(name, arguments, **style)
    assert parsed(text, "hermes", seed=seed) == output(before, (name, json.loads(json.dumps(arguments))))


SCRAPS = [
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": {',
    '{"name": "f"',
    "}",
    "}}",
    '"a": 1',
    ", ",
    "\n",
    " ",
    "<",
]
SCRAPS += [
    '"arguments": ',
    "{",
    '"',
    "\\",
    "tex",
    "<function=lookup>",
    "<parameter=q>",
    "</parameter>",
    "</function>",
    "v",
]


@given(
    st.lists(st.sampled_from(SCRAPS), max_size=14).map("".join), st.sampled_from(["hermes", "xml"]), st.integers(0, 9)
)
def test_scraps_of_markup_never_break_a_reply(text: str, parser: str, seed: int) -> None:
    _, result = events_and_output(text, parser, seed=seed)
    if not result.tool_uses:
        assert result.text == text


def test_reasoning_then_calls() -> None:
    text = "<think>\nI call <tool_call> now\n</think>\n\n" + call(*A)
    result = parsed(text, "hermes", reasoning_parser="think")
    assert result == ParsedModelOutput(reasoning="I call <tool_call> now", tool_uses=(ToolUse(*A),))


@pytest.mark.parametrize(
    ("head", "unit"),
    [
        ("", "<tool_call>"),
        ("", "\n"),
        ("", "a\n<tool_cal"),
        (call(*A), "\n"),
        ('<tool_call>{"name": "f", "arguments": {"a": "', "x"),
        ('<tool_call>{"name": "f", "arguments": {"a": "', "\\u12"),
        ('<tool_call>{"arguments": {"a": "', "x"),
        ('<tool_call>{"arguments": {', " "),
        ('<tool_call>{"name": "f", "arguments": {', " "),
        ('<tool_call>{"name": "f", "arguments": {"a": broken', "</tool"),
        ("", call(*A)),
        ("<tool_call><function=lookup><parameter=q>", "x"),
        ("<tool_call><function=lookup>", "<parameter=q>x</parameter>"),
        ("<tool_call><function=lookup><parameter=q>", "</function>\n"),
        ("<tool_call><function=lookup><parameter=q>", "<tool_call>x"),
        ("", "<tool_call><function=lookup><parameter=q>"),
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_cost_is_linear(head: str, unit: str, whole: bool) -> None:
    def feed(size: int) -> None:
        text = head + unit * size
        run([text] if whole else list(text), "hermes")

    assert_linear(feed, max(8, (8_200 if whole else 1_000) // len(unit)))
