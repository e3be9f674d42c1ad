"""Whatever JSON a client sends: it is parsed, or it is a BadRequest that names a field. Nothing else escapes."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import BadRequest
from adapter.protocols.base import WireProtocol
from adapter.types import ChatRequest
from tests.adapter.protocols.cases import PROTOCOLS, UNTIMED

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=5)
)
WORDS = st.sampled_from(
    (
        "messages",
        "role",
        "content",
        "type",
        "text",
        "user",
        "assistant",
        "tool",
        "tools",
        "tool_use",
        "tool_result",
        "id",
    )
)
JSON = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)

ANTHROPIC_BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": 32,
    "system": [{"type": "text", "text": "sys", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "plan", "signature": "s"},
                {"type": "text", "text": "ok"},
                {"type": "tool_use", "id": "t1", "name": "lookup", "input": {"q": ["slime", {"deep": 1}]}},
            ],
        },
        {
            "role": "system",
            "content": [
                {"type": "text", "text": "reminder"},
                {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "later"}},
                {
                    "type": "tool_addition",
                    "tool": {
                        "type": "tool_definition",
                        "definition": {"name": "own", "input_schema": {}, "strict": True},
                    },
                },
                {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "lookup"}},
            ],
            "clear_at": "never",
            "output_config": {"effort": "low"},
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [{"type": "text", "text": "r"}, {"type": "tool_reference", "tool_name": "later"}],
                    "is_error": True,
                }
            ],
        },
    ],
    "tools": [
        {"name": "lookup", "description": "d", "input_schema": {"type": "object"}, "strict": False},
        {"name": "later", "input_schema": {"type": "object"}, "defer_loading": True},
    ],
    "tool_choice": {"type": "tool", "name": "lookup", "disable_parallel_tool_use": False},
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "metadata": {"user_id": '{"session_id":"s"}'},
    "stop_sequences": ["END"],
    "temperature": 1,
    "stream": True,
}

CHAT_BODY: dict[str, Any] = {
    "model": "m",
    "max_completion_tokens": 32,
    "messages": [
        {"role": "developer", "content": "sys"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "plan",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": '{"q":1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "assistant", "content": "so", "prefix": True},
    ],
    "tools": [
        {
            "type": "function",
            "function": {"name": "lookup", "description": "d", "parameters": {"type": "object"}, "strict": True},
        }
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "lookup"}}]},
    },
    "parallel_tool_calls": False,
    "n": 2,
    "logprobs": True,
    "continue_final_message": True,
    "add_generation_prompt": False,
    "reasoning_effort": "none",
    "stream_options": {"include_usage": True},
    "chat_template_kwargs": {"enable_thinking": True},
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "t", "schema": {"type": "object"}, "strict": True},
    },
    "stop": ["END"],
    "seed": 5,
    "temperature": 1,
    "metadata": {"session_id": "s"},
}

RESPONSES_BODY: dict[str, Any] = {
    "model": "m",
    "max_output_tokens": 32,
    "instructions": "sys",
    "input": [
        {"role": "developer", "content": "more"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "plan"}], "encrypted_content": "e"},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "lookup", "arguments": '{"q":1}'},
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c2", "name": "patch", "input": "x"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "r"}]},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "r"},
    ],
    "tools": [
        {"type": "function", "name": "lookup", "strict": False, "parameters": {"type": "object"}},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
        {"type": "namespace", "name": "ns", "description": "d", "tools": [{"type": "function", "name": "f"}]},
        {"type": "web_search"},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "lookup"}]},
    "parallel_tool_calls": True,
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
    "include": ["reasoning.encrypted_content"],
    "metadata": {"session_id": "s"},
    "store": False,
    "prompt_cache_key": "k",
    "temperature": 1,
    "stream": True,
}  # fmt: skip

GEMINI_BODY: dict[str, Any] = {
    "model": "models/m",
    "systemInstruction": {"role": "user", "parts": [{"text": "sys"}]},
    "contents": [
        {"role": "user", "parts": [{"text": "hi"}, {"text": "there"}]},
        {
            "role": "model",
            "parts": [
                {"text": "plan", "thought": True},
                {"text": "ok", "thoughtSignature": "s"},
                {"functionCall": {"id": "c1", "name": "lookup", "args": {"q": ["slime", {"deep": 1}]}}},
            ],
        },
        {"role": "user", "parts": [{"functionResponse": {"id": "c1", "name": "lookup", "response": {"output": "r"}}}]},
    ],
    "tools": [
        {
            "functionDeclarations": [
                {"name": "lookup", "description": "d", "parametersJsonSchema": {"type": "object"}},
                {
                    "name": "typed",
                    "parameters": {
                        "type": "OBJECT",
                        "properties": {
                            "n": {"type": "INTEGER", "nullable": True, "minimum": 1, "default": [1]},
                            "s": {"anyOf": [{"type": "STRING", "enum": ["a"], "maxLength": "5"}], "example": "a"},
                            "l": {"type": "ARRAY", "items": {"type": "NUMBER"}, "minItems": 1},
                        },
                        "required": ["n"],
                        "propertyOrdering": ["s", "n"],
                    },
                    "response": {"type": "STRING"},
                },
            ]
        }
    ],
    "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["lookup"]}},
    "generationConfig": {
        "temperature": 1,
        "topP": 0.95,
        "topK": 64,
        "maxOutputTokens": 32,
        "stopSequences": ["END"],
        "seed": 5,
        "candidateCount": 1,
        "responseMimeType": "application/json",
        "responseSchema": {"type": "OBJECT"},
        "responseModalities": ["TEXT"],
        "responseLogprobs": False,
        "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 8192, "thinkingLevel": "LOW"},
    },
    "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
    "labels": {"session_id": "s"},
    "stream": True,
}

VALID = {
    "anthropic": ANTHROPIC_BODY,
    "openai_chat": CHAT_BODY,
    "openai_responses": RESPONSES_BODY,
    "gemini": GEMINI_BODY,
}
HISTORY = {"anthropic": "messages", "openai_chat": "messages", "openai_responses": "input", "gemini": "contents"}


def parse_or_bad_request(protocol: WireProtocol, body: Any) -> None:
    """The only two outcomes; what parses can be rendered, journaled and put into a header."""
    try:
        request = protocol.parse_request(body)
    except BadRequest as error:
        assert error.field
        orjson.dumps(protocol.render_error(error))
        return
    check_request(request)
    protocol.body_session(body)


def check_request(request: ChatRequest) -> None:
    assert request.messages
    orjson.dumps([list(request.messages), list(request.tools), dict(request.template_options)])
    for message in request.messages:
        assert message["role"] in ("system", "user", "assistant", "tool")
        assert isinstance(message["content"], str)
    ",".join(request.unused_fields).encode("ascii")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_bodies_to_be_mutated_are_valid(protocol: str) -> None:
    check_request(PROTOCOLS[protocol].parse_request(VALID[protocol]))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@UNTIMED
@given(body=JSON)
def test_random_json(protocol: str, body: Any) -> None:
    parse_or_bad_request(PROTOCOLS[protocol], body)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@UNTIMED
@given(
    messages=JSON,
    extra=st.dictionaries(
        st.sampled_from(sorted({name for body in VALID.values() for name in body})), JSON, max_size=3
    ),
)
def test_random_members(protocol: str, messages: Any, extra: dict[str, Any]) -> None:
    parse_or_bad_request(PROTOCOLS[protocol], {HISTORY[protocol]: messages} | extra)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@UNTIMED
@given(data=st.data())
def test_valid_bodies_with_some_values_replaced_or_removed(protocol: str, data: st.DataObject) -> None:
    body = copy.deepcopy(VALID[protocol])
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(places(body)))
        if data.draw(st.booleans()):
            holder[key] = data.draw(JSON)
        else:
            del holder[key]
        if not body:
            break
    parse_or_bad_request(PROTOCOLS[protocol], body)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every ``(holder, key)`` of a JSON value."""
    if isinstance(value, dict):
        keys: list[Any] = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    else:
        return []
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_single_value_replaced_by_every_kind(protocol: str) -> None:
    kinds: tuple[Any, ...] = (
        None,
        True,
        0,
        -1,
        2**63,
        1.5,
        "",
        "x",
        [],
        [None],
        [[]],
        {},
        {"type": None},
        {"type": "x"},
    )
    for index in range(len(places(VALID[protocol]))):
        for kind in kinds:
            body = copy.deepcopy(VALID[protocol])
            holder, key = places(body)[index]
            holder[key] = kind
            parse_or_bad_request(PROTOCOLS[protocol], body)
