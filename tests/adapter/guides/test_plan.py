"""What a request demands, as a grammar: what it lets a model write, and what it does not.

In one of the vocabularies ``<tool_call>`` is a token, in the other it is text.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from adapter.errors import BadRequest
from adapter.guides import guide_for
from adapter.guides.formats import CALL_FORMATS
from adapter.guides.plan import MAX_GUIDE_CHARACTERS
from adapter.parsing.choose import ParserChoice
from adapter.parsing.tools.registry import TOOL_FAMILIES
from adapter.protocols.common import function_tool
from adapter.types import ChatRequest, OutputFormat, ToolChoice, ToolChoiceMode
from engine.grammar import grammar_fault
from engine.types import Guide, GuideKind
from tests.adapter.guides.vocabulary import Vocabulary
from tests.support.assets import demo_model_dir, tokenizer_dir

PLAIN, THINKS = ParserChoice("hermes", "none"), ParserChoice("hermes", "think")
BOTH = frozenset({GuideKind.JSON_SCHEMA, GuideKind.LARK})
ANSWER = OutputFormat({"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}, "response_format")
TOOLS = (
    function_tool(
        "weather",
        "",
        {
            "type": "object",
            "properties": {"unit": {"enum": ["C", "F"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["unit", "days"],
            "additionalProperties": False,
        },
    ),
    function_tool('odd "name"', "", {"type": "object", "properties": {}, "additionalProperties": False}),
)
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"unit": "C", "days": 3}}\n</tool_call>'
TOWN = '<tool_call>\n{"name": "weather", "arguments": {"town": "Bern"}}\n</tool_call>'
ODD = '<tool_call>\n{"name": "odd \\"name\\"", "arguments": {}}\n</tool_call>'
THOUGHT = "<think>\nIs it </thin> cold?\n</think>\n\n"

FORCED = ChatRequest((), tools=TOOLS, tool_choice=ToolChoice(ToolChoiceMode.REQUIRED))
STRICT = ChatRequest((), tools=TOOLS, strict_tools={"weather": "tools.0.strict"})
FORMAT = ChatRequest((), output_format=ANSWER)


@pytest.fixture(scope="module", params=["qwen3", "smollm2"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return Vocabulary.load(demo_model_dir() if request.param == "smollm2" else tokenizer_dir(request.param))


def guide(
    vocabulary: Vocabulary, request: ChatRequest, parsers: ParserChoice = PLAIN, tail: str = "assistant\n"
) -> Guide:
    markers = vocabulary.markers(parsers)
    for marker in ("<think>", "</think>"):
        tail = tail.replace(marker, markers.look(marker))
    plan = guide_for(request, parsers, markers, tail, BOTH)
    assert plan is not None
    assert grammar_fault(plan.guide) is None
    return plan.guide


@pytest.mark.parametrize(
    ("request_", "allowed", "not_allowed"),
    [
        (FORCED, [WEATHER, ODD, f"{WEATHER}\n{ODD}\n{WEATHER}"], ["", "Hello", f"Hello {WEATHER}", TOWN, f"{WEATHER} bye"]),
        (replace(FORCED, parallel_tool_calls=False), [WEATHER], [f"{WEATHER}\n{ODD}", ""]),
        (replace(FORCED, tool_choice=ToolChoice(ToolChoiceMode.REQUIRED, ("weather",))), [WEATHER], [ODD, "x"]),
        (replace(FORCED, tool_choice=ToolChoice(names=("weather",))), ["Hi", f"Hi {WEATHER} bye", TOWN], [f"Hi {ODD}"]),
        (STRICT, ["", "Hi", f"Hi\n{WEATHER}\n{ODD} bye", WEATHER], [TOWN, f"Hi {TOWN}"]),
        (replace(STRICT, parallel_tool_calls=False), ["Hi", f"Hi\n{WEATHER}"], [f"{WEATHER}\n{WEATHER}", TOWN]),
        (replace(STRICT, tool_choice=FORCED.tool_choice), [WEATHER], [TOWN, "Hi"]),
        (FORMAT, ['{"n": 1}', '{"n":2}', '{ "n" :\n1 }'], ["", '{"n": 3}', "Sure", '{"n": 1} ok', WEATHER]),
        (replace(FORMAT, output_format=OutputFormat(None, "f")), ['{"a": [1, null]}', "{}"], ["[1]", "1", "Sure: {}"]),
        (replace(FORMAT, tools=TOOLS), ['{"n": 1}', WEATHER, TOWN], ["Hi", f'{{"n": 1}}{WEATHER}']),
        (
            replace(FORMAT, tools=TOOLS, tool_choice=ToolChoice(ToolChoiceMode.NONE)),
            ['{"n": 1}'],
            ["Hi", WEATHER],
        ),
    ],
)  # fmt: skip
def test_what_may_be_written(
    vocabulary: Vocabulary, request_: ChatRequest, allowed: list[str], not_allowed: list[str]
) -> None:
    for parsers in (PLAIN, THINKS):
        found = guide(vocabulary, request_, parsers)
        assert {text: vocabulary.allows(found, text) for text in allowed} == dict.fromkeys(allowed, True)
        assert {text: vocabulary.allows(found, text) for text in not_allowed} == dict.fromkeys(not_allowed, False)


@pytest.mark.parametrize(("request_", "text"), [(FORCED, WEATHER), (STRICT, f"Hi {WEATHER}"), (FORMAT, '{"n": 1}')])
def test_a_model_may_think_before(vocabulary: Vocabulary, request_: ChatRequest, text: str) -> None:
    found = guide(vocabulary, request_, THINKS)
    assert vocabulary.allows(found, THOUGHT + text)
    assert request_ is STRICT or not vocabulary.allows(found, THOUGHT.removesuffix("</think>\n\n"))


@pytest.mark.parametrize(("request_", "text"), [(FORCED, WEATHER), (FORMAT, '{"n": 1}')])
def test_a_thought_that_the_prompt_opened_has_to_be_closed(
    vocabulary: Vocabulary, request_: ChatRequest, text: str
) -> None:
    found = guide(vocabulary, request_, THINKS, "assistant\n<think>\n")
    assert vocabulary.allows(found, THOUGHT.removeprefix("<think>\n") + text)
    assert not vocabulary.allows(found, text)
    assert not vocabulary.allows(found, THOUGHT + text) or "<think>" not in vocabulary.tokenizer.get_vocab()


@pytest.mark.parametrize(("request_", "text"), [(FORCED, WEATHER), (FORMAT, '{"n": 1}')])
def test_a_thought_that_the_prompt_closed_is_over(vocabulary: Vocabulary, request_: ChatRequest, text: str) -> None:
    found = guide(vocabulary, request_, THINKS, "assistant\n<think>\n\n</think>\n\n")
    assert vocabulary.allows(found, text)
    assert not vocabulary.allows(found, THOUGHT + text)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_written_under_a_forced_call_is_parsed_as_one(vocabulary: Vocabulary, seed: int) -> None:
    ids = vocabulary.written(guide(vocabulary, FORCED), seed, 2000)
    assert ids is not None
    parsed = vocabulary.parsed(ids, FORCED, PLAIN)
    assert parsed.tool_uses
    assert (parsed.text, parsed.ill_formed) == ("", False)
    for use in parsed.tool_uses:
        if use.name == "weather":
            assert use.input["unit"] in ("C", "F")
            assert 1 <= use.input["days"] <= 9
        else:
            assert (use.name, use.input) == ('odd "name"', {})


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_written_under_strict_tools_has_no_other_calls(vocabulary: Vocabulary, seed: int) -> None:
    ids = vocabulary.written(guide(vocabulary, STRICT), seed, 60)
    parsed = vocabulary.parsed(ids or [], STRICT, PLAIN)
    assert not parsed.ill_formed
    assert all(set(use.input) == {"unit", "days"} for use in parsed.tool_uses if use.name == "weather")


def test_structure_tokens_are_named_by_id_where_there_are_any(vocabulary: Vocabulary) -> None:
    text = guide(vocabulary, FORCED, THINKS).text
    is_token = "<tool_call>" in vocabulary.tokenizer.get_vocab()
    assert ("<[151657]>" in text) == is_token
    assert ("<tool_call>" in text) == (not is_token)


def test_where_the_reply_is_json_alone_the_guide_is_the_schema(vocabulary: Vocabulary) -> None:
    assert guide(vocabulary, FORMAT) == Guide(GuideKind.JSON_SCHEMA, json.dumps(ANSWER.schema))
    assert guide(vocabulary, FORMAT, THINKS).kind is GuideKind.LARK
    plan = guide_for(FORMAT, PLAIN, vocabulary.markers(PLAIN), "", frozenset({GuideKind.LARK}))
    assert plan is not None and plan.guide.kind is GuideKind.LARK


def test_options_for_the_compiler_are_no_clients(vocabulary: Vocabulary) -> None:
    schema = {**(ANSWER.schema or {}), "x-guidance": {"lenient": True}, "not": {}}
    plan = guide_for(
        replace(FORMAT, output_format=OutputFormat(schema, "f")), PLAIN, vocabulary.markers(PLAIN), "", BOTH
    )
    assert plan is not None
    assert grammar_fault(plan.guide) == 'Unimplemented keys: ["not"]'


def test_a_forced_call_passes_over_keywords_that_nobody_knows(vocabulary: Vocabulary) -> None:
    tool = function_tool("f", "", {"type": "object", "properties": {"a": {"type": "string", "format": "secret"}}})
    forced = replace(FORCED, tools=(tool,))
    assert vocabulary.allows(
        guide(vocabulary, forced), '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>'
    )
    strict = guide_for(replace(forced, strict_tools={"f": "x"}), PLAIN, vocabulary.markers(PLAIN), "", BOTH)
    assert strict is not None
    assert "secret" in (grammar_fault(strict.guide) or "")


def test_deferred_tools_can_be_called_too(vocabulary: Vocabulary) -> None:
    found = guide(vocabulary, replace(FORCED, tools=TOOLS[1:], deferred_tools=TOOLS[:1]))
    assert vocabulary.allows(found, WEATHER)


@pytest.mark.parametrize(
    "request_",
    [
        ChatRequest((), tools=TOOLS),
        ChatRequest((), tools=TOOLS, parallel_tool_calls=False),
        ChatRequest((), tools=TOOLS, tool_choice=ToolChoice(ToolChoiceMode.NONE)),
        replace(STRICT, tool_choice=ToolChoice(ToolChoiceMode.NONE)),
        ChatRequest((), strict_tools={"gone": "tools.0.strict"}),
    ],
)
def test_who_demands_nothing_gets_no_guide(request_: ChatRequest) -> None:
    for offered in (BOTH, frozenset()):
        assert guide_for(request_, PLAIN, MARKERLESS, "", offered) is None


MARKERLESS: Any = Vocabulary.load(demo_model_dir()).markers(PLAIN)


@pytest.mark.parametrize(
    ("request_", "field"),
    [(FORCED, "tool_choice"), (STRICT, "tools.0.strict"), (FORMAT, "response_format")],
)
@pytest.mark.parametrize(
    ("parsers", "offered", "more", "reason"),
    [
        (PLAIN, frozenset(), {}, "the engine has no guided decoding, so this cannot be ensured"),
        (PLAIN, frozenset({GuideKind.REGEX}), {}, "the engine's guided decoding is by schema alone"),
        (PLAIN, BOTH, {"continues": True}, "not possible in a reply that goes on from an assistant message"),
        (
            ParserChoice("gpt_oss", "none"),
            BOTH,
            {},
            "this server cannot hold replies in the format gpt_oss to a grammar",
        ),
        (
            ParserChoice("pythonic", "none"),
            BOTH,
            {"tools": TOOLS},
            "this server cannot force .* in the format pythonic",
        ),
    ],
)
def test_what_cannot_be_ensured_is_refused_by_the_field_that_asks_for_it(
    request_: ChatRequest, field: str, parsers: ParserChoice, offered: Any, more: dict[str, Any], reason: str
) -> None:
    with pytest.raises(BadRequest, match=f"^{reason}") as refusal:
        guide_for(replace(request_, **more), parsers, MARKERLESS, "", offered)
    assert refusal.value.field == field


def test_schemas_of_any_size_are_not_taken() -> None:
    tool = function_tool(
        "f", "", {"type": "object", "properties": {f"p{n}": {} for n in range(MAX_GUIDE_CHARACTERS // 10)}}
    )
    with pytest.raises(BadRequest, match=r"^the schemas make a grammar of [0-9]+ characters, of at most"):
        guide_for(replace(FORCED, tools=(tool,)), PLAIN, MARKERLESS, "", BOTH)


def test_without_a_tool_no_call_can_be_forced() -> None:
    with pytest.raises(BadRequest, match=r"^there is no tool that could be called"):
        guide_for(replace(FORCED, tools=()), PLAIN, MARKERLESS, "", BOTH)


def test_every_format_is_a_parsers() -> None:
    assert set(CALL_FORMATS) <= set(TOOL_FAMILIES)
