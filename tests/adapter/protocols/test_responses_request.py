"""OpenAI Responses requests: items become messages, knobs, tools, and what is refused under which name."""

from __future__ import annotations

from typing import Any

import pytest

from adapter.errors import BadRequest
from adapter.handles import Handles, TurnIds
from adapter.protocols.openai_responses import OpenAIResponses
from adapter.types import ChatRequest, Message, OutputFormat, ToolChoice, ToolChoiceMode

PROTOCOL = OpenAIResponses()

HI = {"role": "user", "content": "hi"}
PARAMETERS = {"type": "object", "properties": {"q": {"type": "string"}}}
LOOKUP = {"type": "function", "name": "lookup", "description": "Look it up", "parameters": PARAMETERS, "strict": False}
PATCH = {"type": "custom", "name": "patch", "description": "Patch."}


def parse(**members: Any) -> ChatRequest:
    return PROTOCOL.parse_request({"model": "m", "input": "hi", **members})


def messages_of(*items: dict[str, Any]) -> list[Message]:
    return list(parse(input=list(items)).messages)


def refused(**members: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse(**members)
    return caught.value


def text(*parts: str, kind: str = "output_text") -> list[dict[str, Any]]:
    return [{"type": kind, "text": part} for part in parts]


def call(name: str = "lookup", call_id: str = "c1", **members: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": '{"q":"slime"}', **members}


def output(call_id: str = "c1", value: Any = "result") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def neutral_call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_string_is_a_user_message() -> None:
    assert parse().messages == (HI,)
    assert parse(instructions="sys").messages == ({"role": "system", "content": "sys"}, HI)


def test_items_become_neutral_messages() -> None:
    assert messages_of(
        {"type": "message", "role": "developer", "content": "sys"},
        {"role": "user", "content": text("a", "b", kind="input_text")},
        {"type": "reasoning", "id": "rs", "summary": text("plan", " more", kind="summary_text"), "content": None},
        {"type": "message", "role": "assistant", "content": text("I ", "look.")},
        call(),
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** Begin"},
        output(value=text("r1", "r2", kind="input_text")),
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "system", "content": "late"},
    ) == [
        {"role": "system", "content": "sys"},
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "plan more",
            "tool_calls": [neutral_call("lookup", {"q": "slime"}), neutral_call("patch", {"input": "*** Begin"})],
        },
        {"role": "tool", "content": "r1\nr2"},
        {"role": "tool", "content": "ok"},
        {"role": "assistant", "content": "no"},
        {"role": "system", "content": "late"},
    ]


def test_reasoning_itself_goes_before_its_summary() -> None:
    item = {"type": "reasoning", "summary": text("short", kind="summary_text")}
    item["content"] = text("at length", kind="reasoning_text")
    assert messages_of(HI, item, HI)[1]["reasoning_content"] == "at length"


def test_a_system_text_of_which_a_rule_leaves_nothing_is_no_message() -> None:
    header = "x-anthropic-billing-header: cc_version=1; cc_entrypoint=cli;\n"
    request = parse(input=[{"role": "developer", "content": header}, {"role": "system", "content": ""}, HI])
    assert request.messages == ({"role": "system", "content": ""}, HI)
    assert [taken.field for taken in request.normalised] == ["input.0.content"]
    assert parse(instructions=f"{header}sys").messages[0]["content"] == "sys"


def test_results_come_in_the_order_of_their_calls() -> None:
    request = parse(input=[HI, call(call_id="a"), call(call_id="b"), output("b", "second"), output("a", "first")])
    assert [message["content"] for message in request.messages[-2:]] == ["first", "second"]
    assert [taken.rule for taken in request.normalised] == ["tool-result-order"]


def test_the_ids_of_a_reply_are_handles_of_its_message() -> None:
    request = parse(
        input=[
            HI,
            {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "e"},
            {"type": "message", "id": "msg", "role": "assistant", "content": "x"},
            call(id="fc"),
            output(),
            call(call_id="c2"),
        ]
    )
    assert request.handles == ((), ("rs", "e", "msg", "fc", "c1"), (), ("c2",))


def test_two_replies_side_by_side_are_two_messages() -> None:
    handles = Handles()
    cut, whole = (TurnIds(handles, "s", turn) for turn in (3, 4))
    items: list[dict[str, Any]] = [
        {"role": "assistant", "id": cut.new("msg_", 24), "content": "first"},
        {"role": "assistant", "content": " part"},
        {"type": "reasoning", "id": whole.new("rs_", 24), "summary": []},
        {"role": "assistant", "id": whole.new("msg_", 24), "content": "second"},
        call(call_id=whole.new("call_", 24)),
    ]
    first, second = parse(input=[HI, *items]).messages[1:]
    assert first["content"] == "first part"
    assert (second["content"], len(second["tool_calls"])) == ("second", 1)


def test_ids_of_another_server_keep_a_reply_together() -> None:
    items = [
        {"type": "reasoning", "id": "rs_68a1b2c3d4e5f60718293a4b5c6d7e8f", "summary": []},
        call(id="fc_0f1e2d3c4b5a69788796a5b4c3d2e1f0", call_id="call_ZZZZZZZZZZZZZZZZZZZZZZZZ"),
    ]
    assert len(messages_of(HI, *items)) == 2


def test_tools_as_the_model_sees_them() -> None:
    namespace = {"type": "namespace", "name": "web", "description": "d", "tools": [LOOKUP, PATCH]}
    request = parse(tools=[LOOKUP, PATCH, namespace])
    names = [tool["function"]["name"] for tool in request.tools]
    assert names == ["lookup", "patch", "web__lookup", "web__patch"]
    assert request.tools[0]["function"] == {"name": "lookup", "description": "Look it up", "parameters": PARAMETERS}
    custom = request.tools[1]["function"]["parameters"]
    assert (list(custom["properties"]), custom["required"]) == (["input"], ["input"])
    assert messages_of(HI, call(namespace="web"), output())[1]["tool_calls"][0]["function"]["name"] == "web__lookup"


def test_a_grammar_is_told_to_the_model() -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}
    request = parse(tools=[{**PATCH, "format": form}, {**PATCH, "name": "plain", "format": {"type": "text"}}])
    assert request.tools[0]["function"]["description"] == 'Patch.\n\nThe input follows this lark grammar:\nstart: "x"'
    assert request.tools[1]["function"]["description"] == "Patch."
    assert request.unused_fields == ("tools.format",)


def test_hosted_tools_that_agents_always_list_are_left_out() -> None:
    request = parse(tools=[{"type": "web_search"}, {"type": "tool_search"}, {**LOOKUP, "defer_loading": True}])
    assert [tool["function"]["name"] for tool in request.tools] == ["lookup"]
    assert request.unused_fields == ("tools.web_search", "tools.tool_search", "tools.defer_loading")


def test_what_a_tool_says_of_its_results_is_listed() -> None:
    tools = [
        {**LOOKUP, "async": False, "output_schema": {"type": "object"}},
        {**LOOKUP, "name": "b", "output_schema": {}},
    ]
    assert parse(tools=tools).unused_fields == ("tools.output_schema",)


def test_strict_tools_are_named_by_their_fields() -> None:
    namespace = {"type": "namespace", "name": "ns", "tools": [{**LOOKUP, "strict": True}]}
    assert parse(tools=[LOOKUP, namespace]).strict_tools == {"ns__lookup": "tools.1.tools.0.strict"}


@pytest.mark.parametrize(
    ("choice", "neutral"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice(ToolChoiceMode.NONE)),
        ("required", ToolChoice(ToolChoiceMode.REQUIRED)),
        ({"type": "function", "name": "lookup"}, ToolChoice(ToolChoiceMode.REQUIRED, ("lookup",))),
        ({"type": "custom", "name": "patch"}, ToolChoice(ToolChoiceMode.REQUIRED, ("patch",))),
        (
            {"type": "function", "name": "lookup", "namespace": "ns"},
            ToolChoice(ToolChoiceMode.REQUIRED, ("ns__lookup",)),
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "lookup"}]},
            ToolChoice(ToolChoiceMode.AUTO, ("lookup",)),
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [
                    {"type": "function", "name": "lookup"},
                    {"type": "custom", "name": "patch"},
                    {"type": "function", "name": "lookup", "namespace": "ns"},
                ],
            },
            ToolChoice(ToolChoiceMode.REQUIRED),
        ),
    ],
)
def test_tool_choice(choice: Any, neutral: ToolChoice) -> None:
    namespace = {"type": "namespace", "name": "ns", "tools": [LOOKUP]}
    request = parse(tools=[LOOKUP, PATCH, namespace], tool_choice=choice)
    assert request.tool_choice == neutral
    assert len(request.tools) == 3


def test_knobs_are_read_into_the_engines_terms() -> None:
    request = parse(
        max_output_tokens=7, temperature=0.5, top_p=1, seed=3, stop="END", top_k=-1, stream=True, truncation="disabled",
        top_logprobs=0, max_tool_calls=None, include=["reasoning.encrypted_content"], parallel_tool_calls=False,
        reasoning={"effort": "none"}, chat_template_kwargs={"x": 1}, text={"format": {"type": "text"}},
    )  # fmt: skip
    assert (request.max_tokens, request.stop, request.stream) == (7, ("END",), True)
    assert request.sampling == {"temperature": 0.5, "top_p": 1.0, "seed": 3, "top_k": 0}
    assert not request.parallel_tool_calls
    assert request.template_options == {"enable_thinking": False, "x": 1}
    assert request.unused_fields == ()


def test_fields_that_describe_the_client_are_listed() -> None:
    request = parse(
        prompt_cache_key="k", client_metadata={"a": 1}, service_tier="auto", safety_identifier="s", user="u",
        stream_options={"include_obfuscation": False}, reasoning={"effort": "high", "summary": "auto"},
        text={"verbosity": "low"},
    )  # fmt: skip
    assert request.unused_fields == (
        "prompt_cache_key", "client_metadata", "service_tier", "safety_identifier", "user", "stream_options",
        "text.verbosity", "reasoning.summary",
    )  # fmt: skip
    assert request.template_options == {"reasoning_effort": "high"}
    assert request.option_fields == {"reasoning_effort": "reasoning.effort"}


def test_output_formats() -> None:
    assert parse(text={"format": {"type": "json_object"}}).output_format == OutputFormat(None, "text.format")
    schema = {"type": "json_schema", "name": "n", "strict": True, "schema": PARAMETERS}
    request = parse(text={"format": schema})
    assert request.output_format == OutputFormat(PARAMETERS, "text.format")
    assert request.unused_fields == ("text.format.name",)


def test_the_session_that_a_body_names() -> None:
    assert PROTOCOL.body_session({"metadata": {"session_id": "a"}, "user": "u"}) == "a"
    assert PROTOCOL.body_session({"metadata": {"x": "y"}, "user": "u"}) == "u"
    assert PROTOCOL.body_session({"prompt_cache_key": "k"}) is None


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": [{"role": "user"}]}, "input.0.content"),
        ({"input": [{"role": "critic", "content": "x"}]}, "input.0.role"),
        ({"input": [{"type": "web_search_call", "id": "ws"}]}, "input.0.type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0.id"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0.type"),
        ({"input": [HI, output("other")]}, "input.1.call_id"),
        ({"input": [HI, call(), {**output(), "output": None}]}, "input.2.output"),
        ({"input": [HI, call(call_id="")]}, "input.1.call_id"),
        ({"input": [HI, {"type": "custom_tool_call", "call_id": "c", "name": "patch"}]}, "input.1.input"),
        ({"instructions": []}, "instructions"),
        ({"messages": [HI]}, "messages"),
        ({"max_tokens": 7}, "max_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"n": 2}, "n"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"background": "yes"}, "background"),
        ({"store": 1}, "store"),
        ({"previous_response_id": 7}, "previous_response_id"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"tools": [{"type": "file_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "mcp"}]}, "tools.0.type"),
        ({"tools": [LOOKUP, LOOKUP]}, "tools.1.name"),
        ({"tools": [{"type": "namespace", "name": "ns", "tools": [{"type": "web_search"}]}]}, "tools.0.tools.0.type"),
        ({"tools": [{**LOOKUP, "allowed_callers": ["programmatic"]}]}, "tools.0.allowed_callers"),
        ({"tools": [{**LOOKUP, "async": True}]}, "tools.0.async"),
        ({"tools": [{**PATCH, "format": {"type": "json"}}]}, "tools.0.format.type"),
        ({"tools": [LOOKUP], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [LOOKUP], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice.name"),
        ({"tools": [LOOKUP], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [LOOKUP], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.tools"),
        (
            {"tools": [LOOKUP], "tool_choice": {"type": "allowed_tools", "mode": "none", "tools": [LOOKUP]}},
            "tool_choice.mode",
        ),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(members: dict[str, Any], field: str) -> None:
    assert refused(**members).field == field


def test_deep_nesting_of_what_replies_repeat_is_refused() -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    assert refused(tools=[{**LOOKUP, "x": deep}]).field == "tools"
