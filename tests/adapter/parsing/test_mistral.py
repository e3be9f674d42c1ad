"""Tool calls of Mistral's models, in the three formats of their tokenizers' versions."""

from __future__ import annotations

from typing import Any

import pytest

from adapter.types import ParsedModelOutput, ToolUse
from tests.adapter.parsing.marked_replies import both_ways, by_text, by_tokens

A, B = ToolUse("lookup", {"q": "x"}), ToolUse("read_file", {})
A_OBJECT = '{"name": "lookup", "arguments": {"q": "x"}, "id": "abcdefghi"}'
B_OBJECT = '{"name": "read_file", "arguments": {}}'


def output(text: str, *uses: ToolUse, reasoning: str = "", ill_formed: bool = False) -> ParsedModelOutput:
    return ParsedModelOutput(reasoning=reasoning, text=text, tool_uses=uses, ill_formed=ill_formed)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"[TOOL_CALLS][{A_OBJECT}]", output("", A)),
        (f"[TOOL_CALLS] [{A_OBJECT}, {B_OBJECT}]", output("", A, B)),
        (f"I look.[TOOL_CALLS][{A_OBJECT},{B_OBJECT}] \n", output("I look.", A, B)),
        (f"[TOOL_CALLS][{A_OBJECT}]\nDone.", output("\nDone.", A)),
        (f"[TOOL_CALLS][{A_OBJECT}", output("", A)),
        (f"[TOOL_CALLS]{A_OBJECT}", output("", A)),
        (f"[TOOL_CALLS][{A_OBJECT}][TOOL_CALLS][{B_OBJECT}]", output("", A, B)),
        ('[TOOL_CALLS][{"arguments": {"q": "x"}, "name": "lookup"}]', output("", A)),
        ('[TOOL_CALLS][{"name": "lookup", "arguments": "{\\"q\\": \\"x\\"}"}]', output("", A)),
        ('[TOOL_CALLS]lookup[ARGS]{"q": "x"}', output("", A)),
        ('I look.[TOOL_CALLS]lookup[ARGS]{"q": "x"}[TOOL_CALLS]read_file[ARGS]{}', output("I look.", A, B)),
        ('[TOOL_CALLS] lookup [ARGS] {"q": "x"}\n', output("", A)),
        ('[TOOL_CALLS]lookup[CALL_ID]abcdefghi[ARGS]{"q": "x"}', output("", A)),
        ('[TOOL_CALLS]lookup{"q": "x"}', output("", A)),
        ('[TOOL_CALLS]anything[ARGS]{"q": "x"}', output("", ToolUse("anything", {"q": "x"}))),
    ],
)
def test_well_formed(text: str, expected: ParsedModelOutput) -> None:
    assert both_ways(text, "mistral") == expected


@pytest.mark.parametrize("text", ["[ARGS]", "[CALL_ID]x", "[TOOL_CA", "a [list] of [things]", "[", " \n ", ""])
def test_text_that_is_no_call_is_untouched(text: str) -> None:
    assert both_ways(text, "mistral") == output(text)


@pytest.mark.parametrize(
    "text",
    [
        "[TOOL_CALLS]",
        "[TOOL_CALLS] [",
        "[TOOL_CALLS][]",
        "[TOOL_CALLS][1]",
        '[TOOL_CALLS][{"arguments": {}}]',
        '[TOOL_CALLS][{"name": "lookup", "arguments": {',
        "[TOOL_CALLS]lookup",
        "[TOOL_CALLS]lookup[ARGS]",
        "[TOOL_CALLS]lookup[ARGS]{",
        "[TOOL_CALLS][ARGS]{}",
        "[TOOL_CALLS]" + "x" * 2000,
        "[TOOL_CALLS]x[CALL_ID]" + "1" * 2000,
        "[TOOL_CALLS]lookup[TOOL_CALLS]",
    ],
)
def test_without_a_name_or_arguments_it_stays_text(text: str) -> None:
    assert both_ways("Hm. " + text, "mistral") == output("Hm. " + text, ill_formed=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('lookup[ARGS]{"q": "x", "n": tru}', {"q": None, "n": None}),
        ('lookup[ARGS]{"q": "x', {"q": None}),
        ('lookup[ARGS]{"q": "x"} and so on', {"q": "x"}),
        ("lookup[ARGS]{oops: 1}", {}),
        ("lookup[ARGS]oops", {}),
        ('[{"name": "lookup", "arguments": {"q": "x", "n": tru}}, {"name": ', {"q": None, "n": None}),
        ('[{"name": "lookup", "arguments": {"q": "x', {"q": None}),
        ('[{"name": "lookup", "arguments": [1]}]', {}),
        ('[{"name": "lookup" oops', {}),
    ],
)
def test_malformed_calls_are_safe_and_say_so(text: str, expected: dict[str, Any]) -> None:
    text = f"Hm.[TOOL_CALLS]{text}[TOOL_CALLS]read_file[ARGS]{{}}"
    assert by_tokens(text, "mistral") == output("Hm.", ToolUse("lookup", expected), B, ill_formed=True)


def test_a_marker_in_a_string_is_text_only_where_it_is_no_token() -> None:
    by_name = '[TOOL_CALLS]lookup[ARGS]{"q": "[TOOL_CALLS]"}'
    by_object = '[TOOL_CALLS][{"name": "lookup", "arguments": {"q": "[TOOL_CALLS]"}}]'
    for text in (by_name, by_object):
        assert by_text(text, "mistral") == output("", ToolUse("lookup", {"q": "[TOOL_CALLS]"}))
        assert by_tokens(text, "mistral").tool_uses == (ToolUse("lookup", {"q": None}),)


def test_reasoning_before_calls() -> None:
    text = '[THINK]I call.[/THINK]Now.[TOOL_CALLS]lookup[ARGS]{"q": "x"}'
    assert both_ways(text, "mistral", reasoning_parser="mistral") == output("Now.", A, reasoning="I call.")
