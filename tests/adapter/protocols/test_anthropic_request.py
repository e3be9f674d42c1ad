"""Anthropic Messages requests: translation, knobs, and what is refused under which name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapter.errors import BadRequest
from adapter.protocols.anthropic import AnthropicMessages
from adapter.protocols.anthropic_reply import ThinkingDisplay
from adapter.types import ChatRequest, Message, OutputFormat, ToolChoice, ToolChoiceMode

PROTOCOL = AnthropicMessages()

HI = {"role": "user", "content": "hi"}
CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "lookup", "input": {"q": "slime"}}]}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "result"}
TOOL = {"name": "lookup", "description": "Look it up", "input_schema": {"type": "object", "properties": {"q": {}}}}


def parse(**members: Any) -> ChatRequest:
    return PROTOCOL.parse_request({"model": "m", "messages": [HI], **members})


def messages_of(*messages: dict[str, Any], **members: Any) -> list[Message]:
    return list(parse(messages=list(messages), **members).messages)


def refused(**members: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse(**members)
    return caught.value


def test_a_conversation_becomes_neutral_messages() -> None:
    neutral = messages_of(
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "plan", "signature": "s"},
                {"type": "text", "text": "ok"},
                {"type": "tool_use", "id": "t1", "name": "lookup", "input": {"q": "slime"}},
            ],
        },
        {"role": "user", "content": [RESULT]},
        system="sys",
    )
    assert neutral == [
        {"role": "system", "content": "sys"},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "ok",
            "reasoning_content": "plan",
            "tool_calls": [{"type": "function", "function": {"name": "lookup", "arguments": {"q": "slime"}}}],
        },
        {"role": "tool", "content": "result"},
    ]


def test_a_tool_becomes_a_function() -> None:
    (tool,) = parse(tools=[{**TOOL, "cache_control": {"type": "ephemeral"}, "type": "custom"}]).tools
    assert tool == {
        "type": "function",
        "function": {"name": "lookup", "description": "Look it up", "parameters": TOOL["input_schema"]},
    }


def test_results_come_before_the_text_of_their_message_in_the_order_of_their_calls() -> None:
    calls = {"role": "assistant", "content": [{**CALL["content"][0], "id": name} for name in ("t1", "t2")]}  # type: ignore[dict-item]
    answer = {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "t2",
                "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}],
            },
            {"type": "text", "text": "and now"},
            {"type": "tool_result", "tool_use_id": "t1", "is_error": True},
            {"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}},
        ],
    }
    assert messages_of(HI, calls, answer)[2:] == [
        {"role": "tool", "content": "Error"},
        {"role": "tool", "content": "b\nc"},
        {"role": "user", "content": "and now\ngo on"},
    ]


def test_string_and_block_content_mean_the_same() -> None:
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": "b"}]
    assert messages_of({"role": "user", "content": texts}, system=texts) == messages_of(
        {"role": "user", "content": "a\nb"}, system="a\nb"
    )


def test_assistant_text_is_joined_without_a_separator() -> None:
    pieces = {"role": "assistant", "content": [{"type": "text", "text": "I look "}, {"type": "text", "text": "there"}]}
    assert messages_of(HI, pieces, HI)[1] == {"role": "assistant", "content": "I look there"}


@pytest.mark.parametrize("content", ["", [], [{"type": "thinking", "thinking": "", "signature": "s"}]])
def test_an_empty_reply_can_be_replayed(content: Any) -> None:
    assert messages_of(HI, {"role": "assistant", "content": content}, HI)[1] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("system", [None, "", [], [{"type": "text", "text": ""}]])
def test_an_empty_system_prompt_is_none(system: Any) -> None:
    assert messages_of(HI, system=system) == [HI]


def test_a_call_without_a_result_is_accepted() -> None:
    assert [message["role"] for message in messages_of(HI, CALL, HI)] == ["user", "assistant", "user"]


def reference(name: str) -> dict[str, Any]:
    return {"role": "user", "content": [{**RESULT, "content": [{"type": "tool_reference", "tool_name": name}]}]}


def test_a_deferred_tool_is_defined_where_it_is_referred_to() -> None:
    deferred = {**TOOL, "name": "fetch", "description": "取回", "defer_loading": True}
    request = parse(messages=[HI, CALL, reference("fetch")], tools=[deferred, TOOL])
    assert [tool["function"]["name"] for tool in request.tools] == ["lookup"]
    (tool,) = request.deferred_tools
    assert tool["function"]["name"] == "fetch"
    definition = request.messages[-1]["content"]
    assert json.loads(definition) == tool
    assert "取回" in definition


def test_a_list_of_tools_that_grows_with_references_changes_nothing_before_them() -> None:
    deferred = {**TOOL, "name": "fetch", "defer_loading": True}
    before = parse(messages=[HI, CALL, reference("lookup")], tools=[TOOL])
    after = parse(messages=[HI, CALL, reference("lookup"), CALL, reference("fetch")], tools=[deferred, TOOL])
    assert after.tools == before.tools
    assert after.messages[: len(before.messages)] == before.messages


@pytest.mark.parametrize("name", ["lookup", "unknown"])
def test_a_reference_to_any_other_tool_is_its_name(name: str) -> None:
    assert parse(messages=[HI, CALL, reference(name)], tools=[TOOL]).messages[-1]["content"] == name


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("no such file", "Error: no such file"),
        ("Error: no such file", "Error: no such file"),
        ("<tool_use_error>No such tool</tool_use_error>", "<tool_use_error>No such tool</tool_use_error>"),
        ("x" * 80 + " error", "Error: " + "x" * 80 + " error"),
        ("", "Error"),
    ],
)
def test_the_model_reads_that_a_tool_failed(text: str, read: str) -> None:
    message = {"role": "user", "content": [{**RESULT, "content": text, "is_error": True}]}
    assert messages_of(HI, CALL, message)[-1] == {"role": "tool", "content": read}
    fine = {"role": "user", "content": [{**RESULT, "content": text, "is_error": False}]}
    assert messages_of(HI, CALL, fine)[-1] == {"role": "tool", "content": text}


def change(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "system", "content": list(blocks)}


FETCH = {"name": "fetch", "description": "取回", "input_schema": {"type": "object"}}
BY_NAME = {"type": "tool_reference", "name": "fetch"}


def test_a_deferred_tool_is_defined_where_a_system_message_adds_it() -> None:
    tools = [TOOL, {**FETCH, "defer_loading": True}]
    request = parse(messages=[HI, change({"type": "tool_addition", "tool": BY_NAME})], tools=tools)
    lead, definition = request.messages[-1]["content"].split("\n")
    assert lead == "This tool is available from now on:"
    assert json.loads(definition) == request.deferred_tools[0]
    assert [tool["function"]["name"] for tool in request.tools] == ["lookup"]


def test_a_tool_that_a_system_message_defines_can_be_called() -> None:
    block = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": FETCH}}
    request = parse(messages=[HI, change({"type": "text", "text": "News."}, block)], tools=[TOOL])
    assert [tool["function"]["name"] for tool in request.deferred_tools] == ["fetch"]
    assert request.messages[-1]["content"].startswith("News.\nThis tool is available from now on:\n{")
    assert len(request.tools) == 1


def test_the_model_is_told_that_a_tool_is_gone() -> None:
    removal = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "lookup"}}
    request = parse(messages=[HI, change(removal)], tools=[TOOL])
    assert request.messages[-1] == {"role": "system", "content": "This tool is no longer available: lookup"}
    assert len(request.tools) == 1  # the head is as it was


@pytest.mark.parametrize("later", [HI, {"role": "user", "content": [RESULT]}])
def test_a_system_message_for_one_user_message_goes_with_the_next(later: dict[str, Any]) -> None:
    passing = {"role": "system", "content": "Now!", "clear_at": "next_user_message"}
    lasting = {"role": "system", "content": "Always.", "clear_at": "never"}
    assert "Now!" in str(messages_of(HI, passing, lasting))
    history = messages_of(HI, passing, lasting, CALL, later)
    assert "Now!" not in str(history)
    assert "Always." in str(history)


def test_what_a_system_message_says_of_effort_is_listed() -> None:
    message = {"role": "system", "output_config": {"effort": "low"}}
    request = parse(messages=[HI, message])
    assert request.messages == (HI,)
    assert request.unused_fields == ("messages.output_config.effort",)


def test_system_entries_stay_where_they_are() -> None:
    system = [{"role": "system", "content": text} for text in "ABCD"]
    entries = messages_of(
        system[1], HI, CALL, {"role": "user", "content": [RESULT]}, system[2], CALL, system[3], system="A"
    )
    assert [message for message in entries if message["role"] == "system"] == system
    roles = ["system", "system", "user", "assistant", "tool", "system", "assistant", "system"]
    assert [message["role"] for message in entries] == roles


def test_the_body_is_left_as_it_was() -> None:
    body = {"messages": [dict(HI), {"role": "system", "content": "X"}], "tools": [dict(TOOL)], "system": "sys"}
    before = repr(body)
    PROTOCOL.parse_request(body)
    assert repr(body) == before


def test_knobs_are_read_into_the_engines_terms() -> None:
    request = parse(
        max_tokens=7,
        temperature=0,
        top_p=0.5,
        top_k=3,
        stop_sequences=["\n\n", "END"],
        stream=True,
        seed=-1,
        min_tokens=2,
    )
    assert request.max_tokens == 7
    assert request.sampling == {"temperature": 0.0, "top_p": 0.5, "top_k": 3, "seed": 2**64 - 1, "min_tokens": 2}
    assert request.stop == ("\n\n", "END")
    assert request.stream
    assert request.include_usage


def test_what_is_left_out_stays_open() -> None:
    request = PROTOCOL.parse_request({"messages": [HI], "max_tokens": None, "temperature": None, "tools": None})
    assert request == ChatRequest(messages=(HI,))


@pytest.mark.parametrize(
    ("thinking", "options", "unused"),
    [
        ({"type": "enabled", "budget_tokens": 31999}, {"enable_thinking": True}, ("thinking.budget_tokens",)),
        ({"type": "adaptive", "display": "omitted"}, {"enable_thinking": True}, ()),
        ({"type": "disabled"}, {"enable_thinking": False}, ()),
        ({"type": "between_tools"}, {"enable_thinking": False}, ()),
        (None, {}, ()),
    ],
)
def test_thinking_is_a_template_option(thinking: Any, options: dict[str, Any], unused: tuple[str, ...]) -> None:
    request = parse(thinking=thinking)
    assert request.template_options == options
    assert request.unused_fields == unused


@pytest.mark.parametrize(
    ("effort", "options"),
    [
        ("low", {"reasoning_effort": "low"}),
        ("max", {"reasoning_effort": "high"}),
        ("none", {"enable_thinking": False}),
        (None, {}),
    ],
)
def test_the_effort_is_a_template_option(effort: str | None, options: dict[str, Any]) -> None:
    request = parse(output_config={"effort": effort})
    assert request.template_options == options
    assert set(request.option_fields.values()) == ({"output_config.effort"} if options else set())


def test_fields_of_template_options_are_told() -> None:
    request = parse(thinking={"type": "adaptive"}, chat_template_kwargs={"style": "x"})
    assert request.option_fields == {"enable_thinking": "thinking.type", "style": "chat_template_kwargs.style"}


def test_template_options_go_before_thinking() -> None:
    request = parse(thinking={"type": "enabled"}, chat_template_kwargs={"enable_thinking": False, "style": "x"})
    assert request.template_options == {"enable_thinking": False, "style": "x"}


def test_fields_without_effect_are_listed() -> None:
    request = parse(
        metadata={"user_id": "u"},
        service_tier="auto",
        output_config={"effort": "high", "task_budget": {"type": "tokens", "total": 64}, "style": "x"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        betas=["x"],
        messages=[HI, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}] * 2}, HI],
        **{"bad\r\nheader": 1},
    )
    assert request.unused_fields == (
        "metadata",
        "service_tier",
        "betas",
        "messages.content.redacted_thinking",
        "output_config.task_budget",
        "output_config.style",
        "context_management",
    )


def test_many_unknown_fields_are_listed_only_in_part() -> None:
    assert len(parse(**{f"x{number}": 1 for number in range(500)}).unused_fields) == 64


@pytest.mark.parametrize(
    ("wire", "choice", "parallel"),
    [
        (None, ToolChoice(), True),
        ({"type": "auto"}, ToolChoice(), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(), False),
        ({"type": "none"}, ToolChoice(ToolChoiceMode.NONE), True),
        ({"type": "any"}, ToolChoice(ToolChoiceMode.REQUIRED), True),
        (
            {"type": "tool", "name": "lookup", "disable_parallel_tool_use": True},
            ToolChoice(ToolChoiceMode.REQUIRED, ("lookup",)),
            False,
        ),
    ],
)
def test_tool_choice_leaves_the_tools_in_the_prompt(wire: Any, choice: ToolChoice, parallel: bool) -> None:
    request = parse(tools=[TOOL, {**FETCH, "defer_loading": True}], tool_choice=wire)
    assert (request.tool_choice, request.parallel_tool_calls) == (choice, parallel)
    assert (len(request.tools), len(request.deferred_tools)) == (1, 1)


def test_strict_tools_are_named_with_their_fields() -> None:
    block = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {**FETCH, "strict": True}}}
    request = parse(tools=[{**TOOL, "strict": True}], messages=[HI, change(block)])
    fields = {"lookup": "tools.0.strict", "fetch": "messages.1.content.0.tool.definition.strict"}
    assert request.strict_tools == fields
    assert "strict" not in request.tools[0]["function"]


def test_a_deferred_tool_can_be_forced() -> None:
    fetch = {"type": "tool", "name": "fetch"}
    assert parse(tools=[{**FETCH, "defer_loading": True}], tool_choice=fetch).tool_choice.names == ("fetch",)
    block = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": FETCH}}
    assert parse(messages=[HI, change(block)], tool_choice=fetch).tool_choice.names == ("fetch",)


SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}}


@pytest.mark.parametrize(
    ("members", "field"),
    [
        (
            {"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}}},
            "output_config.format",
        ),
        ({"output_format": {"type": "json_schema", "schema": SCHEMA}}, "output_format"),
    ],
)
def test_an_output_format_is_a_schema_and_the_field_that_asked_for_it(members: dict[str, Any], field: str) -> None:
    assert parse(**members).output_format == OutputFormat(SCHEMA, field)


@pytest.mark.parametrize(
    ("display", "context"),
    [
        ("summarized", ThinkingDisplay.FULL),
        ("omitted", ThinkingDisplay.OMITTED),
        ("updates", ThinkingDisplay.OMITTED),
        (None, None),
    ],
)
def test_the_reply_shows_its_thinking_as_asked(display: str | None, context: ThinkingDisplay | None) -> None:
    assert parse(thinking={"type": "adaptive", "display": display}).reply_context is context


def test_a_trailing_assistant_message_is_continued() -> None:
    request = parse(messages=[HI, {"role": "assistant", "content": "The answer is ("}])
    assert request.continues
    assert request.messages[-1] == {"role": "assistant", "content": "The answer is ("}
    assert not parse(messages=[HI, {"role": "assistant", "content": "so"}, HI]).continues


def test_a_trailing_message_that_only_names_its_turn_is_continued() -> None:
    thinking = {"type": "thinking", "thinking": "", "signature": "s"}
    request = parse(messages=[HI, {"role": "assistant", "content": [thinking]}])
    assert request.continues
    assert request.handles == ((), ("s",))


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
def test_an_empty_trailing_assistant_message_begins_nothing(content: Any) -> None:
    request = parse(messages=[HI, {"role": "assistant", "content": content}])
    assert request.messages == (HI,)
    assert not request.continues


def test_knobs_that_change_nothing_are_accepted() -> None:
    parse(min_p=0, n=1, logprobs=False, logit_bias={}, mcp_servers=[], parallel_tool_calls=True, container=None)


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
TOOL_USE = {"type": "tool_use", "id": "a", "name": "b", "input": {}}


def history(*blocks: dict[str, Any]) -> dict[str, Any]:
    """A conversation with these blocks in its assistant message."""
    return {"messages": [HI, {"role": "assistant", "content": list(blocks)}, HI]}


def results(*blocks: dict[str, Any]) -> dict[str, Any]:
    """A conversation with these blocks in the message after its tool call."""
    return {"messages": [HI, CALL, {"role": "user", "content": list(blocks)}]}


@pytest.mark.parametrize(
    ("field", "members"),
    [
        ("messages", {"messages": None}),
        ("messages", {"messages": []}),
        ("messages", {"messages": "hi"}),
        ("messages", {"messages": [{"role": "system", "content": ""}]}),
        ("messages.0", {"messages": ["hi"]}),
        ("messages.0.role", {"messages": [{"content": "hi"}]}),
        ("messages.0.role", {"messages": [{"role": "robot", "content": "hi"}]}),
        ("messages.0.role", {"messages": [{"role": 1, "content": "hi"}]}),
        ("messages.0.content", {"messages": [{"role": "user"}]}),
        ("messages.0.content", {"messages": [{"role": "user", "content": []}]}),
        ("messages.0.content", {"messages": [{"role": "user", "content": 5}]}),
        ("messages.1.content", {"messages": [HI, {"role": "system"}]}),
        ("messages.0.content.0", {"messages": [{"role": "user", "content": ["hi"]}]}),
        ("messages.0.content.0.type", {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}),
        ("messages.0.content.0.text", {"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]}),
        ("messages.0.content.1.type", {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}, IMAGE]}]}),
        ("messages.2.content.0.content.0.type", results({**RESULT, "content": [IMAGE]})),
        ("messages.2.content.0.tool_use_id", results({**RESULT, "tool_use_id": "t2"})),
        ("messages.0.content.0.tool_use_id", {"messages": [{"role": "user", "content": [RESULT]}]}),
        ("messages.2.content.1.tool_use_id", results(RESULT, {"type": "tool_result"})),
        ("messages.1.content.0.input", history({**TOOL_USE, "input": "x"})),
        ("messages.1.content.0.id", history({**TOOL_USE, "id": ""})),
        ("messages.1.content.1.type", history(TOOL_USE, {"type": "server_tool_use"})),
        ("messages.1", {"messages": [HI, CALL]}),
        ("messages.1", {"messages": [HI, CALL, {"role": "system", "content": ""}]}),
        ("messages", {"messages": [{"role": "assistant", "content": ""}]}),
        ("messages.1.clear_at", {"messages": [HI, {"role": "system", "content": "x", "clear_at": "later"}]}),
        ("messages.1.content.0.type", {"messages": [HI, {"role": "system", "content": [IMAGE]}]}),
        ("messages.1.content.0.tool", {"messages": [HI, change({"type": "tool_addition"})]}),
        ("messages.1.content.0.tool.name", {"messages": [HI, change({"type": "tool_addition", "tool": BY_NAME})]}),
        ("messages.1.content.0.tool.name", {"messages": [HI, change({"type": "tool_removal", "tool": BY_NAME})]}),
        (
            "messages.1.content.0.tool.type",
            {"messages": [HI, change({"type": "tool_removal", "tool": {"type": "mcp_toolset_reference", "server_name": "s"}})]},
        ),
        ("system", {"system": 5}),
        ("system.0.type", {"system": [IMAGE]}),
        ("model", {"model": 5}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": "7"}),
        ("max_tokens", {"max_tokens": True}),
        ("max_tokens", {"max_tokens": 7.5}),
        ("max_tokens", {"max_tokens": 2**31}),
        ("min_tokens", {"min_tokens": 8, "max_tokens": 7}),
        ("temperature", {"temperature": 2.1}),
        ("temperature", {"temperature": float("nan")}),
        ("top_p", {"top_p": 0}),
        ("top_k", {"top_k": -2}),
        ("stream", {"stream": "yes"}),
        ("stop_sequences", {"stop_sequences": [""]}),
        ("stop_sequences", {"stop_sequences": ["x"] * 65}),
        ("stop_sequences", {"stop_sequences": ["x" * 1025]}),
        ("stop_sequences.1", {"stop_sequences": ["x", None]}),
        ("thinking.type", {"thinking": {"type": "always"}}),
        ("thinking.type", {"thinking": {}}),
        ("thinking.display", {"thinking": {"type": "adaptive", "display": "loud"}}),
        ("thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": "many"}}),
        ("output_config.effort", {"output_config": {"effort": "huge"}}),
        ("output_config.format.type", {"output_config": {"format": {"type": "xml"}}}),
        ("output_config.format.schema", {"output_config": {"format": {"type": "json_schema"}}}),
        ("context_management.edits.0.type", {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}),
        ("context_management.edits.0.type", {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}),
        ("tools.0.type", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        ("tools.0.input_schema", {"tools": [{"name": "a"}]}),
        ("tools.0.name", {"tools": [{"name": "", "input_schema": {}}]}),
        ("tools.0.strict", {"tools": [{**TOOL, "strict": 1}]}),
        ("tools.0.input_examples", {"tools": [{**TOOL, "input_examples": [{"q": "x"}]}]}),
        ("tools.0.allowed_callers", {"tools": [{**TOOL, "allowed_callers": ["code_execution_20260120"]}]}),
        ("tool_choice.type", {"tools": [TOOL], "tool_choice": {"type": "required"}}),
        ("tool_choice.type", {"tool_choice": {"type": "any"}}),
        ("tool_choice.name", {"tools": [TOOL], "tool_choice": {"type": "tool"}}),
        ("tool_choice.name", {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "fetch"}}),
        ("tool_choice", {"tool_choice": "auto"}),
        ("tool_choice.disable_parallel_tool_use", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}),
        ("chat_template_kwargs.messages", {"chat_template_kwargs": {"messages": []}}),
        ("chat_template_kwargs.bos_token", {"chat_template_kwargs": {"bos_token": "x"}}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"a b": 1}}),
        ("min_p", {"min_p": 0.1}),
        ("n", {"n": 2}),
        ("logprobs", {"logprobs": True}),
        ("mcp_servers", {"mcp_servers": [{}]}),
        ("thread", {"thread": {"type": "create"}}),
        ("container", {"container": "c"}),
        ("output_format.schema", {"output_format": {"type": "json_schema"}}),
        ("stop", {"stop": "x"}),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(field: str, members: dict[str, Any]) -> None:
    assert refused(**members).field == field


def test_deep_json_is_refused_where_it_stands() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"x": deep}
    assert refused(tools=[{"name": "a", "input_schema": deep}]).field == "tools.0.input_schema"
    assert parse(tools=[{"name": "a", "input_schema": deep["x"]}]).tools[0]["function"]["parameters"] == deep["x"]


def test_the_message_says_what_was_expected() -> None:
    assert str(refused(messages=[{"role": "user", "content": 5}])) == "must be a string or an array, not a number"
    assert str(refused(messages=[{"role": None, "content": "x"}])) == "must be a string, not null"
    assert str(refused(messages=[{"content": "x"}])) == "is required: a string"


def test_a_body_that_is_no_object_is_refused() -> None:
    with pytest.raises(BadRequest, match="must be a JSON object, not an array"):
        PROTOCOL.parse_request([])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metadata", "session"),
    [
        ({"session_id": "s1"}, "s1"),
        ({"user_id": '{"device_id":"d","account_uuid":"","session_id":"s2"}'}, "s2"),
        ({"session_id": "", "user_id": '{"session_id":"s3"}'}, "s3"),
        ({"user_id": "user_1"}, None),
        ({"user_id": "[1]"}, None),
        ({"user_id": {"session_id": "s"}}, None),
        ({"session_id": 5}, None),
        ("s1", None),
        (None, None),
    ],
)
def test_the_session_in_the_body(metadata: Any, session: str | None) -> None:
    assert PROTOCOL.body_session({"metadata": metadata}) == session


CLAUDE_TOOLS = [
    {"name": "Bash", "description": "Run", "input_schema": {"$schema": "x", "type": "object", "properties": {"c": {}}}},
    {"name": "DeferredToolPlaceholder", "description": "x", "input_schema": {"type": "object"}, "defer_loading": True},
]
MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
CLAUDE = {
    "model": "stub-model",
    "max_tokens": 32000,
    "stream": True,
    "metadata": {"user_id": '{"device_id": "d", "account_uuid": "", "session_id": "s"}'},
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.332.abc; cc_entrypoint=sdk-cli;"},
        {"type": "text", "text": "You are Claude Code.", **MARK},
        {"type": "text", "text": "Rules.", **MARK},
    ],
    "tools": CLAUDE_TOOLS,
    "thinking": {"type": "adaptive", "display": "omitted"},
    "output_config": {"effort": "high"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Do it."}]},
        {"role": "system", "content": "Agents there are."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "", "signature": "s"},
                {"type": "text", "text": "On it."},
                {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"c": "ls"}},
                {"type": "tool_use", "id": "t2", "name": "ToolSearch", "input": {"query": "select:fetch"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "tool_reference", "tool_name": "fetch"}]},
                {"type": "tool_result", "tool_use_id": "t1", "content": "<tool_use_error>no</tool_use_error>", "is_error": True},
                {"type": "text", "text": "<system-reminder>x</system-reminder>", **MARK},
            ],
        },
        {"role": "system", "content": [{"type": "text", "text": "Date.", **MARK}]},
    ],
}  # fmt: skip
CLAUDE_DIALECTS: dict[str, dict[str, Any]] = {
    "names that it does not know": {},
    "sonnet 4.5": {"thinking": {"type": "enabled", "budget_tokens": 31999}, "output_config": None},
    "claude 3.5": {"thinking": None, "output_config": None, "context_management": None, "max_tokens": 8192},
    "in its user interface": {"thinking": {"type": "adaptive", "display": "updates"}},
    "side call without tools": {"tools": [], "thinking": {"type": "disabled"}, "temperature": 1},
}


@pytest.mark.parametrize("dialect", CLAUDE_DIALECTS)
def test_nothing_that_claude_code_sends_is_refused(dialect: str) -> None:
    """It answers a 400 with up to six more requests, each without one of its beta features."""
    request = PROTOCOL.parse_request(CLAUDE | CLAUDE_DIALECTS[dialect])
    assert [message["role"] for message in request.messages] == [
        "system", "user", "system", "assistant", "tool", "tool", "user", "system",
    ]  # fmt: skip
    assert request.messages[0]["content"] == "You are Claude Code.\nRules."
    assert request.handles[3] == ("s", "t1", "t2")
    assert request.messages[4]["content"].endswith("no</tool_use_error>")  # in the order of the calls
    assert request.max_calls is None
