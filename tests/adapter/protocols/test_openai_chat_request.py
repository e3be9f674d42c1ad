"""OpenAI Chat Completions requests: translation, knobs, and what is refused under which name."""

from __future__ import annotations

from typing import Any

import pytest

from adapter.errors import BadRequest
from adapter.protocols.openai_chat import OpenAIChat
from adapter.types import ChatRequest, Message, OutputFormat, ToolChoice, ToolChoiceMode

PROTOCOL = OpenAIChat()

HI = {"role": "user", "content": "hi"}
TOOL = {
    "type": "function",
    "function": {"name": "lookup", "description": "Look it up", "parameters": {"type": "object"}},
}


def parse(**members: Any) -> ChatRequest:
    return PROTOCOL.parse_request({"model": "m", "messages": [HI], **members})


def messages_of(*messages: dict[str, Any]) -> list[Message]:
    return list(parse(messages=list(messages)).messages)


def refused(**members: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse(**members)
    return caught.value


def call(arguments: Any, call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "lookup", "arguments": arguments}}


def test_a_conversation_becomes_neutral_messages() -> None:
    neutral = messages_of(
        {"role": "developer", "content": "sys"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "reasoning_content": "plan", "tool_calls": [call('{"q": "slime"}')]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "result"}]},
        {"role": "assistant", "content": "done", "refusal": None, "tool_calls": []},
        {"role": "user", "name": "ann", "content": "next"},
    )
    assert neutral == [
        {"role": "system", "content": "sys"},
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "plan",
            "tool_calls": [{"type": "function", "function": {"name": "lookup", "arguments": {"q": "slime"}}}],
        },
        {"role": "tool", "content": "result"},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "next"},
    ]


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ('{"q": 1}', {"q": 1}),
        ("", {}),
        (None, {}),
        (" \n", {}),
        ({"q": 1}, {"q": 1}),
        ('{"q": ', {"_raw_arguments": '{"q": '}),
        ("[1]", {"_raw_arguments": "[1]"}),
        ('{"q": NaN}', {"_raw_arguments": '{"q": NaN}'}),
        ('{"a":' * 200 + "1" + "}" * 200, {"_raw_arguments": '{"a":' * 200 + "1" + "}" * 200}),
    ],
)
def test_arguments_of_the_history_are_a_dict_in_any_case(arguments: Any, kept: dict[str, Any]) -> None:
    message = messages_of(HI, {"role": "assistant", "tool_calls": [call(arguments)]})[1]
    assert message["tool_calls"][0]["function"]["arguments"] == kept


def test_a_refusal_is_what_the_assistant_said() -> None:
    assert messages_of(HI, {"role": "assistant", "content": None, "refusal": "no"}, HI)[1]["content"] == "no"
    parts = [{"type": "refusal", "refusal": "no, "}, {"type": "text", "text": "sorry"}]
    assert messages_of(HI, {"role": "assistant", "content": parts}, HI)[1]["content"] == "no, sorry"


def test_a_tool_keeps_its_parameters() -> None:
    assert parse(tools=[TOOL]).tools == (TOOL,)
    (bare,) = parse(tools=[{"type": "function", "function": {"name": "now"}}]).tools
    assert bare["function"] == {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}


def test_knobs_are_read_into_the_engines_terms() -> None:
    request = parse(
        max_completion_tokens=7, temperature=0.5, top_p=1, seed=-1, stop="END", presence_penalty=1, frequency_penalty=-1,
        n=1, top_k=-1, min_tokens=3, repetition_penalty=1.1, stream=True, stream_options={"include_usage": True},
        tool_choice="auto", response_format={"type": "text"}, modalities=["text"], logprobs=False, logit_bias={},
        chat_template_kwargs={"enable_thinking": False}, parallel_tool_calls=True,
    )  # fmt: skip
    assert request.max_tokens == 7
    assert request.sampling == {
        "temperature": 0.5, "top_p": 1.0, "seed": 2**64 - 1, "presence_penalty": 1.0, "frequency_penalty": -1.0,
        "top_k": 0, "min_tokens": 3, "repetition_penalty": 1.1,
    }  # fmt: skip
    assert request.stop == ("END",)
    assert request.stream
    assert request.include_usage
    assert request.template_options == {"enable_thinking": False}
    assert request.unused_fields == ()


def test_what_is_left_out_stays_open() -> None:
    request = PROTOCOL.parse_request({"messages": [HI], "max_tokens": None, "stop": None, "stream_options": None})
    assert request == ChatRequest(messages=(HI,), include_usage=False)


def test_both_names_of_the_token_limit_are_honoured() -> None:
    assert parse(max_tokens=5, max_completion_tokens=9).max_tokens == 5
    assert parse(max_tokens=9, max_completion_tokens=5).max_tokens == 5
    assert parse(max_tokens=9).max_tokens == 9


def test_a_list_of_stop_strings() -> None:
    assert parse(stop=["a", "b"]).stop == ("a", "b")


def test_fields_without_effect_are_listed() -> None:
    names = ("store", "user", "metadata", "prompt_cache_key", "service_tier", "verbosity")
    options = {"include_usage": True, "include_obfuscation": False}
    request = parse(**dict.fromkeys(names, "x"), messages=[{**HI, "name": "ann"}], stream_options=options)
    assert request.unused_fields == (*names, "messages.name", "stream_options.include_obfuscation")


LOOKUP = {"type": "function", "function": {"name": "lookup"}}
REQUIRED, AUTO, NONE = ToolChoiceMode.REQUIRED, ToolChoiceMode.AUTO, ToolChoiceMode.NONE


def allowed(mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


@pytest.mark.parametrize(
    ("wire", "choice"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice(NONE)),
        ("required", ToolChoice(REQUIRED)),
        (LOOKUP, ToolChoice(REQUIRED, ("lookup",))),
        (allowed("auto", LOOKUP), ToolChoice(AUTO, ("lookup",))),
        (allowed("required", LOOKUP), ToolChoice(REQUIRED, ("lookup",))),
    ],
)
def test_tool_choice_leaves_the_tools_in_the_prompt(wire: Any, choice: ToolChoice) -> None:
    request = parse(tools=[TOOL], tool_choice=wire)
    assert request.tool_choice == choice
    assert request.tools == (TOOL,)


def test_a_strict_tool_is_named_with_its_field() -> None:
    strict = {"type": "function", "function": {"name": "a", "strict": True}}
    request = parse(tools=[TOOL, strict])
    assert request.strict_tools == {"a": "tools.1.function.strict"}
    assert "strict" not in request.tools[1]["function"]


def test_one_call_at_most() -> None:
    assert not parse(tools=[TOOL], parallel_tool_calls=False).parallel_tool_calls
    assert parse(tools=[TOOL]).parallel_tool_calls


def test_no_effort_is_no_thinking() -> None:
    request = parse(reasoning_effort="none")
    assert (request.template_options, request.unused_fields) == ({"enable_thinking": False}, ())
    assert parse(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True}).template_options == {
        "enable_thinking": True
    }
    assert parse(reasoning_effort="xhigh").template_options == {"reasoning_effort": "high"}
    assert parse(reasoning_effort="xhigh").option_fields == {"reasoning_effort": "reasoning_effort"}


def test_several_choices_and_log_probs() -> None:
    request = parse(n=3, logprobs=True, top_logprobs=0)
    assert (request.n, request.log_probs) == (3, True)
    assert (parse(n=None).n, parse().log_probs) == (1, False)


SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}}


@pytest.mark.parametrize(
    ("wire", "wanted"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, OutputFormat(None, "response_format")),
        (
            {"type": "json_schema", "json_schema": {"name": "t", "schema": SCHEMA, "strict": True}},
            OutputFormat(SCHEMA, "response_format"),
        ),
    ],
)
def test_response_format(wire: Any, wanted: OutputFormat | None) -> None:
    assert parse(response_format=wire).output_format == wanted


def test_what_a_response_format_says_in_words_is_listed() -> None:
    described = {"name": "t", "description": "A title", "schema": SCHEMA}
    request = parse(response_format={"type": "json_schema", "json_schema": described})
    assert request.unused_fields == ("response_format.json_schema.name", "response_format.json_schema.description")


SO_FAR = {"role": "assistant", "content": "The answer is ("}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [HI, SO_FAR], "continue_final_message": True},
        {"messages": [HI, SO_FAR], "continue_final_message": True, "add_generation_prompt": False},
        {"messages": [HI, {**SO_FAR, "prefix": True}]},
    ],
)
def test_a_reply_can_go_on_from_the_last_message(body: dict[str, Any]) -> None:
    request = parse(**body)
    assert request.continues
    assert request.messages == (HI, SO_FAR)
    assert request.unused_fields == ()


def test_without_a_word_a_new_message_follows_the_last() -> None:
    request = parse(messages=[HI, {**SO_FAR, "prefix": False}], continue_final_message=False)
    assert not request.continues
    assert request.messages == (HI, SO_FAR)


def test_an_empty_beginning_is_none() -> None:
    request = parse(messages=[HI, {"role": "assistant", "content": ""}], continue_final_message=True)
    assert (request.continues, request.messages) == (False, (HI,))


IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}


@pytest.mark.parametrize(
    ("field", "members"),
    [
        ("messages", {"messages": None}),
        ("messages", {"messages": []}),
        ("messages", {"messages": {}}),
        ("messages.0", {"messages": [None]}),
        ("messages.0.role", {"messages": [{}]}),
        ("messages.0.role", {"messages": [{"role": "function", "name": "f", "content": "x"}]}),
        ("messages.0.content", {"messages": [{"role": "user", "content": None}]}),
        ("messages.0.content", {"messages": [{"role": "system"}]}),
        ("messages.0.content.0.type", {"messages": [{"role": "user", "content": [IMAGE]}]}),
        ("messages.0.content.0.text", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
        ("messages.1.audio", {"messages": [HI, {"role": "assistant", "audio": {"id": "a"}}]}),
        ("messages.1.function_call", {"messages": [HI, {"role": "assistant", "function_call": {"name": "f"}}]}),
        ("messages.1.prefix", {"messages": [HI, {**SO_FAR, "prefix": True}, HI]}),
        ("messages.1.prefix", {"messages": [HI, {**HI, "prefix": True}]}),
        ("messages.1.prefix", {"messages": [HI, {**SO_FAR, "prefix": "yes"}]}),
        ("messages.1", {"messages": [HI, {"role": "assistant", "tool_calls": [call("{}")], "prefix": True}]}),
        ("continue_final_message", {"continue_final_message": True}),
        ("add_generation_prompt", {"messages": [HI, SO_FAR], "add_generation_prompt": False}),
        ("add_generation_prompt", {"messages": [HI, SO_FAR], "continue_final_message": True, "add_generation_prompt": True}),
        ("messages.1.reasoning_content", {"messages": [HI, {"role": "assistant", "reasoning_content": ["x"]}]}),
        ("messages.1.tool_calls", {"messages": [HI, {"role": "assistant", "tool_calls": "x"}]}),
        ("messages.1.tool_calls.0.id", {"messages": [HI, {"role": "assistant", "tool_calls": [call("{}", "")]}]}),
        ("messages.1.tool_calls.0.type", {"messages": [HI, {"role": "assistant", "tool_calls": [{**call(""), "type": "custom"}]}]}),
        ("messages.1.tool_calls.0.function", {"messages": [HI, {"role": "assistant", "tool_calls": [{"id": "c"}]}]}),
        ("messages.1.tool_calls.0.function.arguments", {"messages": [HI, {"role": "assistant", "tool_calls": [call(5)]}]}),
        ("messages.1.tool_call_id", {"messages": [HI, {"role": "tool", "tool_call_id": "c1", "content": "x"}]}),
        ("messages.1.tool_call_id", {"messages": [HI, {"role": "tool", "content": "x"}]}),
        ("temperature", {"temperature": -0.1}),
        ("temperature", {"temperature": True}),
        ("presence_penalty", {"presence_penalty": 3}),
        ("repetition_penalty", {"repetition_penalty": 0}),
        ("seed", {"seed": 2**64}),
        ("seed", {"seed": 1.5}),
        ("max_completion_tokens", {"max_completion_tokens": 0}),
        ("min_tokens", {"min_tokens": 8, "max_completion_tokens": 7}),
        ("stop", {"stop": 5}),
        ("stop", {"stop": ""}),
        ("stop.0", {"stop": [5]}),
        ("stream_options", {"stream_options": "x"}),
        ("stream_options.include_usage", {"stream_options": {"include_usage": 1}}),
        ("stream_options.continuous_usage_stats", {"stream_options": {"continuous_usage_stats": True}}),
        ("n", {"n": 0}),
        ("n", {"n": 129}),
        ("n", {"n": True}),
        ("logprobs", {"logprobs": 1}),
        ("reasoning_effort", {"reasoning_effort": 3}),
        ("reasoning_effort", {"reasoning_effort": "some"}),
        ("tools.0.type", {"tools": [{"type": "custom", "custom": {"name": "a"}}]}),
        ("tools.0.type", {"tools": [{"function": {"name": "a"}}]}),
        ("tools.0.function", {"tools": [{"type": "function"}]}),
        ("tools.0.function.name", {"tools": [{"type": "function", "function": {}}]}),
        ("tools.0.function.parameters", {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]}),
        ("tools.0.function.strict", {"tools": [{"type": "function", "function": {"name": "a", "strict": 1}}]}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": "any"}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": 5}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice.type", {"tools": [TOOL], "tool_choice": {"type": "custom", "custom": {"name": "lookup"}}}),
        ("tool_choice.function.name", {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}),
        ("tool_choice.allowed_tools.mode", {"tools": [TOOL], "tool_choice": allowed("none", LOOKUP)}),
        ("tool_choice.allowed_tools.tools", {"tools": [TOOL], "tool_choice": allowed("auto")}),
        ("tool_choice.allowed_tools.tools.0.type", {"tools": [TOOL], "tool_choice": allowed("auto", {"type": "mcp"})}),
        ("parallel_tool_calls", {"tools": [TOOL], "parallel_tool_calls": 1}),
        ("response_format.type", {"response_format": {"type": "grammar"}}),
        ("response_format.json_schema", {"response_format": {"type": "json_schema"}}),
        ("response_format.json_schema.schema", {"response_format": {"type": "json_schema", "json_schema": {"name": "t"}}}),
        ("logit_bias", {"logit_bias": {"5": 1}}),
        ("top_logprobs", {"top_logprobs": 2}),
        ("audio", {"audio": {"voice": "a"}}),
        ("modalities", {"modalities": ["text", "audio"]}),
        ("functions", {"functions": [{"name": "f"}]}),
        ("function_call", {"function_call": "auto"}),
        ("prediction", {"prediction": {"type": "content", "content": "x"}}),
        ("web_search_options", {"web_search_options": {}}),
        ("guided_json", {"guided_json": {"type": "object"}}),
        ("stop_token_ids", {"stop_token_ids": [5]}),
        ("best_of", {"best_of": 4}),
        ("system", {"system": "sys"}),
        ("chat_template_kwargs", {"chat_template_kwargs": "x"}),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(field: str, members: dict[str, Any]) -> None:
    assert refused(**members).field == field


@pytest.mark.parametrize(
    ("members", "session"),
    [
        ({"metadata": {"session_id": "s1"}, "user": "u"}, "s1"),
        ({"metadata": {"session_id": ""}, "user": "u"}, "u"),
        ({"metadata": "x", "user": "u"}, "u"),
        ({"user": 5}, None),
        ({}, None),
    ],
)
def test_the_session_in_the_body(members: dict[str, Any], session: str | None) -> None:
    assert PROTOCOL.body_session(members) == session
