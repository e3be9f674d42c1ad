"""Bare calls of Llama 3.1 to 4 and Gemma 3: JSON, pythonic, built-in tools, fences."""

from __future__ import annotations

from typing import Any

import pytest

from adapter.parsing.base import ReplyContext
from adapter.parsing.tools.llama import BareCalls
from adapter.types import ParsedModelOutput, TextDelta, ToolCallDelta, ToolCallEnd, ToolCallStart, ToolUse
from tests.adapter.parsing.marked_replies import TOOLS, both_ways, by_text, by_tokens

A, B = ToolUse("lookup", {"q": "x", "n": 3}), ToolUse("read_file", {})
A_JSON = '{"name": "lookup", "parameters": {"q": "x", "n": 3}}'
B_JSON = '{"name": "read_file", "parameters": {}}'
A_PYTHON = "lookup(q='x', n=3)"


def output(text: str, *uses: ToolUse, ill_formed: bool = False) -> ParsedModelOutput:
    return ParsedModelOutput(text=text, tool_uses=uses, ill_formed=ill_formed)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (A_JSON, output("", A)),
        (f" \n{A_JSON}\n", output("", A)),
        (f"{A_JSON}; {B_JSON}", output("", A, B)),
        (f"{A_JSON}\n{B_JSON}", output("", A, B)),
        (f"{A_JSON}, {B_JSON};", output("", A, B)),
        (f"{A_JSON}\n\nDone.", output("\n\nDone.", A)),
        (f"{A_JSON}; {{not a call}}", output("; {not a call}", A)),
        ('{"name": "lookup", "arguments": {"q": "x", "n": 3}}', output("", A)),
        ('{"parameters": {"q": "x", "n": 3}, "type": "function", "name": "lookup"}', output("", A)),
        ('{"name": "read_file"}', output("", B)),
        ('{"name": "read_file", "parameters": null}', output("", B)),
        ('{"name": "read_file", "parameters": "{}"}', output("", B)),
        ('{"name": "lookup", "parameters": {"q": "x", "n": 3}, "other": [1]}', output("", A)),
        (f"<|python_tag|>{A_JSON}", output("", A)),
        (f"<|python_tag|> {A_JSON}; {B_JSON}", output("", A, B)),
        (f"<|python_tag|>[{A_PYTHON}]", output("", A)),
        ("<|python_tag|>lookup.call(q='x', n=3)", output("", A)),
        ("<|python_tag|>read_file.call()", output("", B)),
        (f"[{A_PYTHON}]", output("", A)),
        (f"[{A_PYTHON}, read_file()]\n", output("", A, B)),
        ("[read_file(), read_file()]", output("", B, B)),
        (f"[\n  {A_PYTHON},\n  other(z=1),\n]", output("", A, ToolUse("other", {"z": 1}), ill_formed=True)),
        (f"[{A_PYTHON}, other(z=1)]", output("", A, ToolUse("other", {"z": 1}))),
        (f"<|python_start|>[{A_PYTHON}]<|python_end|>", output("", A)),
        (f"```json\n{A_JSON}\n```", output("", A)),
        (f"```json\n{A_JSON}\n{B_JSON}\n```\n", output("", A, B)),
        (f"```tool_code\n{A_PYTHON}\n```", output("", A)),
        (f"```python\n[{A_PYTHON}]\n```\nDone.", output("\n```\nDone.", A)),
        (f"```\n[{A_PYTHON}]\n```", output("", A)),
    ],
)
def test_well_formed(text: str, expected: ParsedModelOutput) -> None:
    assert both_ways(text, "llama") == expected


@pytest.mark.parametrize(
    "text",
    [
        "I look it up.",
        f"I look it up: {A_JSON}",
        f"See [{A_PYTHON}]",
        '{"name": "unheard_of", "parameters": {"q": 1}}',
        '{"parameters": {"q": 1}, "name": "unheard_of"}',
        '{"name": 7}',
        '{"name": "Anna", "age": 7}',
        '{"answer": 42, "name": "lookup"}',
        '{"type": "object"}',
        "{}",
        "{",
        '{"name": "loo',
        '{"name": "lookup"',
        '{"name": "lookup", "parameters": {',
        '{"name": "lookup" "parameters"',
        "[1, 2, 3]",
        "[x] done\n[ ] not done",
        "[unheard_of(q=1)]",
        "[lookup](https://example.org)",
        "[lookup(the thing)]",
        "[lookup(",
        "[lookup()",
        "[lookup() and more]",
        "[",
        "[]",
        "[" + "x" * 1000 + "(",
        "<|python_tag|>import os\nprint(os.getcwd())",
        "<|python_tag|>unheard_of.call(q='x')",
        "<|python_tag|>",
        "<|python_end|>",
        "text <|python_tag|> text",
        "```python\nprint(1)\n```",
        "```tool_code\nprint(lookup(q='x'))\n```",
        "```",
        "``",
        "```rust\nfn main() {}\n```",
        "````",
        " " * 100 + A_JSON,
        " \n ",
        "",
    ],
)
def test_text_that_is_no_call_is_untouched(text: str) -> None:
    assert both_ways(text, "llama") == output(text)


def test_behind_the_token_json_is_a_call_whatever_it_names() -> None:
    text = '<|python_tag|>{"name": "unheard_of", "parameters": {"q": 1}}'
    assert by_tokens(text, "llama") == output("", ToolUse("unheard_of", {"q": 1}))
    assert by_text(text, "llama") == output(text)


def test_nothing_is_a_call_where_nothing_is_offered() -> None:
    for text in (A_JSON, f"[{A_PYTHON}]"):
        assert both_ways(text, "llama", tools=()) == output(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "lookup", "parameters": {"q": "x", "n": tru}} and so on', {"q": None, "n": None}),
        ('{"name": "lookup", "parameters": {"q": "x', {"q": None}),
        ('{"name": "lookup", "parameters": [1]}', {}),
        ("[lookup(q='x', n=oops)] and so on", {"q": None, "n": None}),
        ("[lookup(q='x', 7)]", {"q": None}),
        ("[lookup(q='x', n=[1, {'a': ", {"q": None, "n": None}),
        ("[lookup(q='x'", {"q": None}),
        ("[lookup(q=x)]", {"q": None}),
        ("<|python_tag|>lookup.call(q='x', ", {"q": None}),
    ],
)
def test_malformed_calls_are_safe_and_say_so(text: str, expected: dict[str, Any]) -> None:
    assert both_ways(text, "llama") == output("", ToolUse("lookup", expected), ill_formed=True)


def test_a_second_call_that_breaks_leaves_the_first_whole() -> None:
    assert both_ways("[read_file(), lookup(q='x', oops", "llama") == output(
        "", B, ToolUse("lookup", {"q": None}), ill_formed=True
    )
    assert both_ways("[read_file(), oops", "llama") == output("", B, ill_formed=True)


def test_each_piece_of_json_gives_what_it_settles() -> None:
    parser = BareCalls(ReplyContext(TOOLS))
    pieces = ['{"name": "look', 'up", "para', 'meters": {', '"q": "a', 'b"', "}", "}", "\n", "Done."]
    assert [parser.feed(piece) for piece in pieces] == [
        [],
        [],
        [],
        [ToolCallStart("lookup"), ToolCallDelta('{"q": "a')],
        [ToolCallDelta('b"')],
        [ToolCallDelta("}")],
        [ToolCallEnd(ToolUse("lookup", {"q": "ab"}))],
        [],
        [TextDelta("\nDone.")],
    ]


def test_each_piece_of_python_gives_what_it_settles() -> None:
    parser = BareCalls(ReplyContext(TOOLS))
    pieces = ["[look", "up(", "q", "=", "'a", "b\\", "n", "', n", "=1", "0", ")", ", read_file()", "]"]
    assert [parser.feed(piece) for piece in pieces] == [
        [],
        [],
        [],
        [ToolCallStart("lookup"), ToolCallDelta('{"q":')],
        [ToolCallDelta('"a')],
        [ToolCallDelta("b")],
        [ToolCallDelta("\\n")],
        [ToolCallDelta('"')],
        [ToolCallDelta(',"n":')],
        [],
        [ToolCallDelta("10}"), ToolCallEnd(ToolUse("lookup", {"q": "ab\n", "n": 10}))],
        [ToolCallStart("read_file"), ToolCallDelta("{}"), ToolCallEnd(ToolUse("read_file", {}))],
        [],
    ]


def test_text_is_shown_as_soon_as_it_can_be_no_call() -> None:
    assert BareCalls(ReplyContext(TOOLS)).feed('{"answer": ') == [TextDelta('{"answer": ')]
    assert BareCalls(ReplyContext(TOOLS)).feed("[1") == [TextDelta("[1")]
    assert BareCalls(ReplyContext(TOOLS)).feed("H") == [TextDelta("H")]
