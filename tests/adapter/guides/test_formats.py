"""Every format of calls that can be held to a grammar: what the family writes is allowed, and what is allowed is parsed as meant.

Each with its structure tokens as tokens of the vocabulary, and as text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
from llguidance import LLTokenizer
from tokenizers import AddedToken, Tokenizer

from adapter.errors import BadRequest
from adapter.guides import guide_for
from adapter.guides.formats import CALL_FORMATS
from adapter.parsing.choose import ParserChoice
from adapter.parsing.tools.registry import require_tool_family
from adapter.protocols.common import function_tool
from adapter.types import ChatRequest, ParsedModelOutput, ToolChoice, ToolChoiceMode, ToolUse
from engine.types import Guide, GuideKind
from tests.adapter.guides.vocabulary import Vocabulary
from tests.support.assets import demo_model_dir
from tests.support.family_writers import WRITERS

PROPERTIES = {
    "unit": {"enum": ["C", "F"]},
    "days": {"type": "integer", "minimum": 1, "maximum": 9},
    "deep": {"$ref": "#/$defs/flag"},
    "only": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
}
SCHEMA = {
    "type": "object",
    "properties": PROPERTIES,
    "required": ["unit", "days", "deep"],
    "additionalProperties": False,
    "$defs": {"flag": {"type": "boolean"}},
}
NOTE = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = (function_tool("weather", "", SCHEMA), function_tool("note", "", NOTE))
USES = (
    ToolUse("weather", {"unit": "F", "days": 3, "deep": True, "only": [False, True]}),
    ToolUse("note", {"text": "one\ntwo <b>\"three\"</b> {4} 'five' é"}),
    ToolUse("weather", {"unit": "C", "days": 9, "deep": False}),
)
WRONG = (ToolUse("weather", {"unit": "K", "days": 3, "deep": True}), ToolUse("weather", {"unit": "C", "days": 3}))
FORCED = ChatRequest((), tools=TOOLS, tool_choice=ToolChoice(ToolChoiceMode.REQUIRED))
ONLY_WEATHER = replace(FORCED, tool_choice=ToolChoice(ToolChoiceMode.REQUIRED, ("weather",)))
STRICT = ChatRequest((), tools=TOOLS, strict_tools={"weather": "tools.0.strict"})


DISTINCT = {written: name for name, written in CALL_FORMATS.items()}.values()
"""One name for each format."""


@dataclass(frozen=True)
class Family:
    """A format in a vocabulary."""

    parsers: ParserChoice
    vocabulary: Vocabulary

    def guide(self, request: ChatRequest) -> Guide:
        markers = self.vocabulary.markers(self.parsers)
        plan = guide_for(request, self.parsers, markers, "", frozenset({GuideKind.LARK}))
        assert plan is not None
        return plan.guide

    def allows(self, request: ChatRequest, *uses: ToolUse, text: str = "") -> bool:
        written = WRITERS[self.parsers.tool_parser].write(ParsedModelOutput(text=text, tool_uses=uses))
        assert written is not None
        if self.parsers.tool_parser == "glm47":  # the writer's is the older format, with newlines between the tags
            written = re.sub(r"\n(?=<arg_|</?tool_call>)", "", written)
        return self.vocabulary.allows(self.guide(request), written)


@pytest.fixture(scope="module", params=[f"{name}-{how}" for name in DISTINCT for how in ("tokens", "text")])
def family(request: pytest.FixtureRequest) -> Family:
    name, how = request.param.split("-")
    tokenizer = Tokenizer.from_file(str(demo_model_dir() / "tokenizer.json"))
    if how == "tokens":
        markers = require_tool_family(name).markers
        tokenizer.add_special_tokens([AddedToken(marker, special=True, normalized=False) for marker in markers])
    return Family(ParserChoice(name, "none"), Vocabulary(tokenizer, LLTokenizer(tokenizer.to_str())))


def test_what_the_family_writes_is_allowed(family: Family) -> None:
    assert family.allows(FORCED, *USES)
    assert [family.allows(FORCED, use) for use in USES] == [True, True, True]
    assert not any(family.allows(FORCED, use) for use in WRONG)
    assert family.allows(replace(FORCED, parallel_tool_calls=False), USES[0])
    assert not family.allows(replace(FORCED, parallel_tool_calls=False), USES[0], USES[2])
    assert family.allows(ONLY_WEATHER, USES[0])
    assert not family.allows(ONLY_WEATHER, USES[1])


def test_strict_tools_leave_the_others_free(family: Family) -> None:
    if not CALL_FORMATS[family.parsers.tool_parser].trigger:
        with pytest.raises(BadRequest, match="calls cannot be told from text"):
            family.guide(STRICT)
        return
    assert family.allows(STRICT, text="Nothing to do.")
    assert family.allows(STRICT, *USES, text="So.")
    assert family.allows(STRICT, ToolUse("note", {"other": "x"}), text="So.")
    assert not any(family.allows(STRICT, use, text="So.") for use in WRONG)


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_written_is_parsed_as_a_call_that_follows_its_schema(family: Family, seed: int) -> None:
    ids = family.vocabulary.written(family.guide(ONLY_WEATHER), seed, 3000)
    assert ids is not None
    parsed = family.vocabulary.parsed(ids, ONLY_WEATHER, family.parsers)
    assert (parsed.text.strip(), parsed.ill_formed) == ("", False)
    assert parsed.tool_uses
    for use in parsed.tool_uses:
        check(use.input)


def check(arguments: dict[str, Any]) -> None:
    assert {"unit", "days", "deep"} <= arguments.keys() <= PROPERTIES.keys()
    assert arguments["unit"] in ("C", "F")
    assert type(arguments["days"]) is int and 1 <= arguments["days"] <= 9
    assert type(arguments["deep"]) is bool
    assert all(type(item) is bool for item in arguments.get("only", []))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            {"properties": {"a": {"type": "string", "pattern": "^a"}}},
            "'pattern' cannot be ensured where values have no",
        ),
        ({"properties": {"a": {"type": "string", "maxLength": 3}}}, "'maxLength' cannot be ensured"),
        ({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {}]}, "'anyOf' cannot be ensured"),
        ({"properties": {}, "required": ["a"]}, "required names that are no properties"),
    ],
)
def test_what_cannot_be_ensured_without_quotes_is_refused_for_strict_tools_only(schema: Any, reason: str) -> None:
    tool = function_tool("f", "", {"type": "object", **schema})
    forced = ChatRequest((), tools=(tool,), tool_choice=ToolChoice(ToolChoiceMode.REQUIRED))
    parsers, offered = ParserChoice("xml", "none"), frozenset({GuideKind.LARK})
    markers = Vocabulary.load(demo_model_dir()).markers(parsers)
    assert guide_for(forced, parsers, markers, "", offered) is not None
    with pytest.raises(BadRequest, match=reason) as refusal:
        guide_for(replace(forced, strict_tools={"f": "tools.0.strict"}), parsers, markers, "", offered)
    assert refusal.value.field == "tools.0.strict"
