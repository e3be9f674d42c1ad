"""Calls written parameter by parameter, where ``<tool_call>`` is a token: XML and GLM. (``test_xml.py``: where it is text.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from adapter.parsing.base import ReplyContext
from adapter.parsing.reasoning import require_reasoning_family
from adapter.parsing.reply import ReplyText
from adapter.parsing.tools.registry import require_tool_family
from adapter.types import ParsedModelOutput, ReplyEvent, TextDelta, ToolCallDelta, ToolCallEnd, ToolCallStart, ToolUse
from tests.adapter.parsing.marked_replies import TOOLS, both_ways, by_text, by_tokens, marked, markers_of, run_marked
from tests.support.feeding import assert_linear

Write = Callable[..., str]


def xml(name: str = "lookup", **values: str) -> str:
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{written}</function>\n</tool_call>"


def glm(name: str = "lookup", **values: str) -> str:
    written = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in values.items())
    return f"<tool_call>{name}\n{written}</tool_call>"


def glm47(name: str = "lookup", **values: str) -> str:
    return glm(name, **values).replace("\n", "")


FORMATS = pytest.mark.parametrize(
    ("parser", "write"), [("xml", xml), ("hermes", xml), ("glm45", glm), ("glm45", glm47)]
)


def output(text: str, *inputs: dict[str, Any], ill_formed: bool = False) -> ParsedModelOutput:
    return ParsedModelOutput(
        text=text, tool_uses=tuple(ToolUse("lookup", use) for use in inputs), ill_formed=ill_formed
    )


@FORMATS
def test_calls(parser: str, write: Write) -> None:
    assert both_ways(write(q="slime", n="7"), parser) == output("", {"q": "slime", "n": 7})
    assert both_ways(write(), parser) == output("", {})
    assert both_ways(f"Two.\n{write(q='a')}\n{write(q='b')}", parser) == output("Two.", {"q": "a"}, {"q": "b"})
    assert both_ways(f"{write(n='-1')}\nDone.", parser) == output("\nDone.", {"n": -1})
    assert both_ways(write(q="42", n="many", other="7"), parser) == output("", {"q": "42", "n": "many", "other": "7"})
    assert both_ways(write(q='"\\ 终 </b> <tool_call> </tool_call>'), parser) == output(
        "", {"q": '"\\ 终 </b> <tool_call> </tool_call>'}
    )
    assert both_ways(write(q=""), parser) == output("", {"q": ""})


@FORMATS
def test_of_tools_that_nobody_offered_they_are_text(parser: str, write: Write) -> None:
    text = write("nothing", q="x")
    assert both_ways(f"Hm.\n{text}", parser) == output(f"Hm.\n{text}")
    assert both_ways("the <tool_call> tag", parser) == output("the <tool_call> tag")


def streamed(parser: str, pieces: list[str]) -> list[list[ReplyEvent]]:
    """What each piece brings."""
    family, markers = require_tool_family(parser), markers_of(parser)
    reply = ReplyText(family, require_reasoning_family("none"), ReplyContext(TOOLS, markers))
    return [reply.feed(marked(piece, markers, family.markers)) for piece in pieces]


def test_xml_leaves_as_it_arrives() -> None:
    pieces = ["A\n", "<tool_call>\n<function=lookup>\n", "<parameter=q>", "\nb", "c\n", "d\n</para", "meter>"]
    pieces += ["\n<parameter=n>\n1", "2\n</parameter>\n", "</function>", "\n</tool_call>"]
    assert streamed("xml", pieces) == [
        [TextDelta("A")],
        [],
        [ToolCallStart("lookup"), ToolCallDelta('{"q":"')],
        [ToolCallDelta("b")],
        [ToolCallDelta("c")],
        [ToolCallDelta("\\nd")],
        [ToolCallDelta('"')],
        [ToolCallDelta(',"n":')],
        [ToolCallDelta("12")],
        [ToolCallDelta("}"), ToolCallEnd(ToolUse("lookup", {"q": "bc\nd", "n": 12}))],
        [],
    ]


def test_glm_leaves_as_it_arrives() -> None:
    pieces = ["<tool_call>look", "up\n<arg_key>q", "</arg_key>\n<arg_value>", "\nb", "c</arg_value>", "</tool_call>"]
    assert streamed("glm45", pieces) == [
        [],
        [],
        [ToolCallStart("lookup"), ToolCallDelta('{"q":"')],
        [ToolCallDelta("\\nb")],
        [ToolCallDelta('c"')],
        [ToolCallDelta("}"), ToolCallEnd(ToolUse("lookup", {"q": "\nbc"}))],
    ]


@FORMATS
def test_where_tags_are_text_a_call_waits_until_it_is_whole(parser: str, write: Write) -> None:
    reply = ReplyText(require_tool_family(parser), require_reasoning_family("none"), ReplyContext(TOOLS))
    text = write(q="slime")
    assert [reply.feed(char) for char in text[:-1]] == [[]] * (len(text) - 1)
    assert reply.feed(text[-1])[0] == ToolCallStart("lookup")


@FORMATS
@pytest.mark.parametrize("broken", ["<", "stray", "<parameter=>", "<arg_value>", "<arg_key>n</arg_key>stray"])
def test_markup_that_breaks_in_a_started_call_leaves_nulls(parser: str, write: Write, broken: str) -> None:
    closer = "</tool_call>"
    text = write(n="7").removesuffix(closer).removesuffix("</function>\n") + broken + closer
    assert by_tokens(f"{text}\n{write(q='x')}", parser) == output("", {"n": None}, {"q": "x"}, ill_formed=True)
    assert by_text(text, parser) == ParsedModelOutput(text=text, ill_formed=True)


@FORMATS
def test_cut_off_anywhere_nothing_half_can_run(parser: str, write: Write) -> None:
    family, markers = require_tool_family(parser), markers_of(parser)
    text = marked(write(q="slime", n="7"), markers, family.markers)
    for cut in range(1, len(text)):
        _, result = run_marked(["x" + text[:cut]], parser, markers)
        if result.tool_uses:
            values = result.tool_uses[0].input
            assert (values == {"q": "slime", "n": 7}) is not result.ill_formed
            assert result.text == "x"
            assert not result.ill_formed or all(value is None for value in values.values())
        else:
            assert result.text == markers.spelled("x" + text[:cut])


@pytest.mark.parametrize("ending", ["<parameter=n> and on</tool_call>", "</function>\n</tool_call>"])
def test_an_xml_value_without_its_end_breaks_the_call(ending: str) -> None:
    text = f"<tool_call><function=lookup><parameter=q>a{ending}\nb"
    assert by_tokens(text, "xml") == output("\nb", {"q": None}, ill_formed=True)


@pytest.mark.parametrize("inside", ["<arg_key>", "<arg_value>"])
def test_a_glm_value_without_its_end_breaks_the_call(inside: str) -> None:
    text = f"<tool_call>lookup\n<arg_key>q</arg_key>\n<arg_value>a{inside} and on</tool_call>"
    assert by_tokens(f"{text}\nb", "glm45") == output("\nb", {"q": None}, ill_formed=True)


def test_glm_keys_are_bounded_and_have_no_markers() -> None:
    for key in ("k" * 300, "<arg_value>"):
        text = f"<tool_call>lookup\n<arg_key>{key}</arg_key>\n<arg_value>a</arg_value>\n</tool_call>"
        assert by_tokens(text, "glm45") == ParsedModelOutput(text=text, ill_formed=True)


def test_a_closing_tag_that_is_missing_is_no_fault_of_xml() -> None:
    text = xml(q="a").removesuffix("</tool_call>")
    assert by_tokens(f"{text}{xml(q='b')}", "xml") == output("", {"q": "a"}, {"q": "b"})
    assert by_tokens(f"{text}and on", "xml") == output("and on", {"q": "a"})


HEADS = {
    "xml": "<tool_call><function=lookup><parameter=q>",
    "glm45": "<tool_call>lookup\n<arg_key>q</arg_key><arg_value>",
}
UNITS = ["\n", "<", "</function>\n", "<tool_call>", "<arg_key>"]


@pytest.mark.parametrize("parser", HEADS)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("inside", [False, True])
def test_cost_is_linear_where_tags_are_tokens(parser: str, unit: str, inside: bool) -> None:
    family, markers = require_tool_family(parser), markers_of(parser)

    def feed(size: int) -> None:
        text = marked((HEADS[parser] if inside else "") + unit * size, markers, family.markers)
        run_marked(list(text), parser, markers)

    assert_linear(feed, max(20, 300 // len(unit)))
