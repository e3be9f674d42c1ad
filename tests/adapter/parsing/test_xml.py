"""The XML format and fallback: only whole calls of known tools; everything else stays text."""

from __future__ import annotations

from typing import Any

import pytest

from adapter.parsing.tools.xml import MAX_NAME
from adapter.types import ParsedModelOutput, ToolUse
from tests.adapter.parsing.replies import parsed, tool

PARSERS = pytest.mark.parametrize("parser", ["none", "xml", "hermes"])


def output(text: str, *inputs: dict[str, Any], ill_formed: bool = False, name: str = "lookup") -> ParsedModelOutput:
    return ParsedModelOutput(text=text, tool_uses=tuple(ToolUse(name, use) for use in inputs), ill_formed=ill_formed)


def call(**parameters: str) -> str:
    inside = "".join(f"<parameter={key}>{value}</parameter>" for key, value in parameters.items())
    return f"<tool_call><function=lookup>{inside}</function></tool_call>"


@PARSERS
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (call(q="slime"), output("", {"q": "slime"})),
        (f"lead {call(q='slime')} tail", output("lead  tail", {"q": "slime"})),
        (f"lead\n{call(q='slime')}\ntail", output("lead\ntail", {"q": "slime"})),
        (call(q="a") + "\n" + call(q="b"), output("", {"q": "a"}, {"q": "b"})),
        (call(), output("", {})),
        (call(q=""), output("", {"q": ""})),
        (call(q="\n\n a \n\n"), output("", {"q": "\n a \n"})),
        (call(q="1 < 2 && </b> </param </function>"), output("", {"q": "1 < 2 && </b> </param </function>"})),
        (call(q="</tool_call>"), output("", {"q": "</tool_call>"})),
        (call(q="42", n="42"), output("", {"q": "42", "n": 42})),
        (call(other="42"), output("", {"other": "42"})),
        (
            "Look.\n\n<tool_call>\n<function=lookup>\n<parameter=q>\na\nb\n</parameter>\n<parameter=n>\n7\n</parameter>\n"
            "</function>\n</tool_call>",
            output("Look.\n", {"q": "a\nb", "n": 7}),
        ),
        (call(q="slime").removesuffix("</tool_call>"), output("", {"q": "slime"})),
        (call(q="slime").removesuffix("_call>"), output("", {"q": "slime"})),
    ],
)
def test_calls(parser: str, text: str, expected: ParsedModelOutput) -> None:
    assert parsed(text, parser) == expected


@PARSERS
@pytest.mark.parametrize(
    "text",
    [
        "just text",
        "lead <tool_call><function=unknown><parameter=q>slime</parameter></function></tool_call> tail",
        "<function=lookup><parameter=q>slime</parameter></function>",
        "use <tool_call><function=NAME> for calls",
        "<tool_call><function=look",
        "<tool_call><func",
        "<tool_call><function=>x</function></tool_call>",
        "<tool_call><function=" + "x" * (MAX_NAME + 1),
        "<tool_call><function=loo\nkup></function></tool_call>",
        "<tool_call></tool_call>",
    ],
)
def test_no_call_of_a_known_tool_is_text(parser: str, text: str) -> None:
    assert parsed(text, parser) == output(text)


@PARSERS
@pytest.mark.parametrize(
    "text",
    [
        "<tool_call><function=lookup>",
        "<tool_call><function=lookup>stray</function></tool_call>",
        "<tool_call><function=lookup><parameter=q>no end",
        "<tool_call><function=lookup><parameter=q>a</function></tool_call> and more </parameter></function></tool_call>",
        "<tool_call><function=lookup><parameter=q>a</function>\n</tool_call>",
        "<tool_call><function=lookup><parameter=q>a<parameter=n>1</parameter></function></tool_call>",
        "<tool_call><function=lookup><parameter=q></parameter></tool_call>",
        "<tool_call><function=lookup><parameter=q>a</parameter></function>stray</tool_call>",
        "<tool_call><function=lookup><parameter=>a</parameter></function></tool_call>",
        "<tool_call><function=lookup><parameter=" + "k" * 300,
        "<tool_call><function=lookup></function",
    ],
)
def test_broken_markup_of_a_known_tool_is_text_and_says_so(parser: str, text: str) -> None:
    assert parsed(f"lead\n{text} tail", parser) == output(f"lead\n{text} tail", ill_formed=True)


@PARSERS
def test_a_call_behind_broken_markup_is_found(parser: str) -> None:
    broken = "<tool_call><function=lookup>stray"
    assert parsed(broken + call(q="x"), parser) == output(broken, {"q": "x"}, ill_formed=True)


@PARSERS
@pytest.mark.parametrize("ending", ["", "<parameter=n>", "</function></tool_call>"])
def test_a_call_inside_a_value_without_end_is_found(parser: str, ending: str) -> None:
    broken = "<tool_call><function=lookup><parameter=q>" + "no end " * 20
    other = call().replace("lookup", "read_file")
    assert parsed(f"{broken}\n{other}\n{ending}", parser).tool_uses == (ToolUse("read_file", {}),)


@PARSERS
def test_without_tools_nothing_is_a_call(parser: str) -> None:
    assert parsed(call(q="slime"), parser, tools=()) == output(call(q="slime"))


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "42", "42"),
        ({"type": "string"}, "null", "null"),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"type": "integer"}, "42", 42),
        ({"type": "integer"}, " -1\n", -1),
        ({"type": "integer"}, "1.0", 1.0),
        ({"type": "integer"}, "1.5", "1.5"),
        ({"type": "integer"}, "many", "many"),
        ({"type": "integer"}, "true", "true"),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": "integer"}, "None", "None"),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "boolean"}, "1", "1"),
        ({"type": "array"}, '["a", 1]', ["a", 1]),
        ({"type": "array"}, "a, b", "a, b"),
        ({"type": "object"}, '{"a": {"b": null}}', {"a": {"b": None}}),
        ({"type": "object"}, "[1]", "[1]"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", 7),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "7", "7"),
        ({"oneOf": [{"type": "array"}]}, "[]", []),
        ({"$ref": "#/$defs/Count"}, "7", 7),
        ({"$ref": "#/$defs/Nowhere"}, "7", "7"),
        ({"$ref": "#/$defs/Loop"}, "7", "7"),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"const": True}, "true", True),
        ({}, "7", "7"),
        (True, "7", "7"),
        (None, "7", "7"),
        ({"type": 7}, "7", "7"),
        ({"anyOf": 7}, "7", "7"),
    ],
)
def test_values_are_typed_by_the_schema(schema: Any, text: str, value: Any) -> None:
    typed = tool("lookup", v=schema)
    typed["function"]["parameters"]["$defs"] = {"Count": {"type": "integer"}, "Loop": {"$ref": "#/$defs/Loop"}}
    result = parsed(call(v=text), "xml", tools=(typed,))
    assert [(use.input, type(use.input["v"])) for use in result.tool_uses] == [({"v": value}, type(value))]


@pytest.mark.parametrize("parameters", [None, {}, [], {"properties": None}, {"properties": []}, "none"])
def test_a_tool_may_have_any_schema(parameters: Any) -> None:
    odd = {"type": "function", "function": {"name": "lookup", "parameters": parameters}}
    assert parsed(call(n="1"), "xml", tools=(odd,)) == output("", {"n": "1"})


def test_a_tool_may_have_no_schema() -> None:
    assert parsed(call(n="1"), "xml", tools=({"type": "function", "function": {"name": "lookup"}},)) == output(
        "", {"n": "1"}
    )
