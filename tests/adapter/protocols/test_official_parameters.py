"""Every parameter of the official references is honoured, refused by name, or listed as of no effect: none is taken and forgotten.

The names are read from the official SDKs. A parameter that an SDK's next version brings fails a test here until it has its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import pytest
from anthropic.types import message_create_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from google.genai import types as gemini_types
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

from adapter.errors import BadRequest
from adapter.protocols.base import WireProtocol
from adapter.types import ChatRequest
from tests.adapter.protocols.cases import PROTOCOLS


class Fate(StrEnum):
    """What becomes of a parameter."""

    HONOURED = "honoured"
    """It changes the neutral request."""
    REFUSED = "refused"
    """A 400 that names it."""
    LISTED = "listed"
    """Without effect here, since it only describes the client or guides the server; the client is told its name."""
    GIVEN = "given"
    """What it asks for is there in any case."""


Table = Mapping[str, tuple[Fate, Any]]
"""By a parameter's name: its fate, and a value that would make a difference."""

TOOL_SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "look", "parameters": TOOL_SCHEMA}}
JSON_SCHEMA = {"type": "json_schema", "schema": TOOL_SCHEMA}
SAMPLING: Table = {"temperature": (Fate.HONOURED, 0.5), "top_p": (Fate.HONOURED, 0.5)}

ANTHROPIC: Table = {
    **SAMPLING,
    "top_k": (Fate.HONOURED, 5),
    "messages": (Fate.HONOURED, [{"role": "user", "content": "other"}]),
    "model": (Fate.HONOURED, "other"),
    "max_tokens": (Fate.HONOURED, 5),
    "stop_sequences": (Fate.HONOURED, ["END"]),
    "stream": (Fate.HONOURED, True),
    "system": (Fate.HONOURED, "sys"),
    "thinking": (Fate.HONOURED, {"type": "disabled"}),
    "tools": (Fate.HONOURED, [{"name": "other", "input_schema": TOOL_SCHEMA}]),
    "tool_choice": (Fate.HONOURED, {"type": "any"}),
    "output_config": (Fate.HONOURED, {"effort": "low"}),
    "output_format": (Fate.HONOURED, JSON_SCHEMA),
    "context_management": (Fate.REFUSED, {"edits": [{"type": "clear_tool_uses_20250919"}]}),
    "compaction": (Fate.REFUSED, {"type": "enabled"}),
    "container": (Fate.REFUSED, "container_1"),
    "mcp_servers": (Fate.REFUSED, [{"type": "url", "name": "m", "url": "http://127.0.0.1"}]),
    "thread": (Fate.REFUSED, {"type": "create"}),
    "betas": (Fate.LISTED, ["interleaved-thinking-2025-05-14"]),
    "billing_policy": (Fate.LISTED, {"type": "billing_policy", "bill_to": "self"}),
    "cache_control": (Fate.LISTED, {"type": "ephemeral"}),
    "diagnostics": (Fate.LISTED, {"previous_message_id": "msg_1"}),
    "fallback_credit_token": (Fate.LISTED, "token"),
    "fallbacks": (Fate.LISTED, [{"model": "other"}]),
    "inference_geo": (Fate.LISTED, "eu"),
    "metadata": (Fate.LISTED, {"user_id": "u"}),
    "service_tier": (Fate.LISTED, "standard_only"),
    "speed": (Fate.LISTED, "fast"),
    "user_profile_id": (Fate.LISTED, "profile"),
    "workspace_id": (Fate.LISTED, "workspace"),
}

CHAT: Table = {
    **SAMPLING,
    "messages": (Fate.HONOURED, [{"role": "user", "content": "other"}]),
    "model": (Fate.HONOURED, "other"),
    "frequency_penalty": (Fate.HONOURED, 0.5),
    "presence_penalty": (Fate.HONOURED, 0.5),
    "logprobs": (Fate.HONOURED, True),
    "max_completion_tokens": (Fate.HONOURED, 5),
    "max_tokens": (Fate.HONOURED, 5),
    "n": (Fate.HONOURED, 2),
    "parallel_tool_calls": (Fate.HONOURED, False),
    "reasoning_effort": (Fate.HONOURED, "low"),
    "response_format": (Fate.HONOURED, {"type": "json_object"}),
    "seed": (Fate.HONOURED, 5),
    "stop": (Fate.HONOURED, ["END"]),
    "stream": (Fate.HONOURED, True),
    "stream_options": (Fate.HONOURED, {"include_usage": True}),
    "tool_choice": (Fate.HONOURED, "required"),
    "tools": (Fate.HONOURED, [{"type": "function", "function": {"name": "other"}}]),
    "audio": (Fate.REFUSED, {"voice": "alloy", "format": "wav"}),
    "function_call": (Fate.REFUSED, "auto"),
    "functions": (Fate.REFUSED, [{"name": "look"}]),
    "logit_bias": (Fate.REFUSED, {"5": 10}),
    "modalities": (Fate.REFUSED, ["text", "audio"]),
    "moderation": (Fate.REFUSED, {"model": "m"}),
    "prediction": (Fate.REFUSED, {"type": "content", "content": "x"}),
    "top_logprobs": (Fate.REFUSED, 3),
    "web_search_options": (Fate.REFUSED, {}),
    "metadata": (Fate.LISTED, {"a": "b"}),
    "prompt_cache_key": (Fate.LISTED, "k"),
    "prompt_cache_options": (Fate.LISTED, {"mode": "implicit"}),
    "prompt_cache_retention": (Fate.LISTED, "24h"),
    "safety_identifier": (Fate.LISTED, "u"),
    "service_tier": (Fate.LISTED, "flex"),
    "store": (Fate.LISTED, True),
    "user": (Fate.LISTED, "u"),
    "verbosity": (Fate.LISTED, "low"),
}

RESPONSES: Table = {
    **SAMPLING,
    "background": (Fate.HONOURED, True),
    "include": (Fate.GIVEN, ["reasoning.encrypted_content"]),
    "input": (Fate.HONOURED, "other"),
    "instructions": (Fate.HONOURED, "sys"),
    "max_output_tokens": (Fate.HONOURED, 5),
    "metadata": (Fate.HONOURED, {"a": "b"}),
    "model": (Fate.HONOURED, "other"),
    "parallel_tool_calls": (Fate.HONOURED, False),
    "previous_response_id": (Fate.HONOURED, "resp_1"),
    "reasoning": (Fate.HONOURED, {"effort": "low"}),
    "store": (Fate.HONOURED, False),
    "stream": (Fate.HONOURED, True),
    "text": (Fate.HONOURED, {"format": {"type": "json_object"}}),
    "tool_choice": (Fate.HONOURED, "required"),
    "tools": (Fate.HONOURED, [{"type": "function", "name": "other"}]),
    "background_options": (Fate.REFUSED, {"a": 1}),
    "context_management": (Fate.REFUSED, [{"type": "compaction"}]),
    "conversation": (Fate.REFUSED, "conv_1"),
    "max_tool_calls": (Fate.REFUSED, 1),
    "moderation": (Fate.REFUSED, {"model": "m"}),
    "prompt": (Fate.REFUSED, {"id": "pmpt_1"}),
    "top_logprobs": (Fate.REFUSED, 3),
    "truncation": (Fate.REFUSED, "auto"),
    "access_programs": (Fate.LISTED, {"a": 1}),
    "image": (Fate.LISTED, {"detail": "low"}),
    "prompt_cache_key": (Fate.LISTED, "k"),
    "prompt_cache_options": (Fate.LISTED, {"mode": "implicit"}),
    "prompt_cache_retention": (Fate.LISTED, "24h"),
    "safety_identifier": (Fate.LISTED, "u"),
    "service_tier": (Fate.LISTED, "flex"),
    "stream_options": (Fate.LISTED, {"include_obfuscation": False}),
    "user": (Fate.LISTED, "u"),
}

GEMINI_TOOLS = [{"functionDeclarations": [{"name": "other"}]}]
GEMINI: Table = {
    "cached_content": (Fate.REFUSED, "cachedContents/1"),
    "continuation_token": (Fate.REFUSED, "dG9rZW4="),
    "labels": (Fate.LISTED, {"a": "b"}),
    "model_armor_config": (Fate.REFUSED, {"promptTemplateName": "p"}),
    "safety_settings": (Fate.LISTED, [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]),
    "service_tier": (Fate.LISTED, "flex"),
    "store": (Fate.LISTED, False),
    "system_instruction": (Fate.HONOURED, {"parts": [{"text": "sys"}]}),
    "tool_config": (Fate.HONOURED, {"functionCallingConfig": {"mode": "ANY"}}),
    "tools": (Fate.HONOURED, GEMINI_TOOLS),
}
"""Of the request itself."""

GEMINI_CONFIG: Table = {
    **SAMPLING,
    "candidate_count": (Fate.HONOURED, 2),
    "frequency_penalty": (Fate.HONOURED, 0.5),
    "max_output_tokens": (Fate.HONOURED, 5),
    "presence_penalty": (Fate.HONOURED, 0.5),
    "response_json_schema": (Fate.HONOURED, TOOL_SCHEMA),
    "response_logprobs": (Fate.HONOURED, True),
    "response_mime_type": (Fate.HONOURED, "application/json"),
    "response_schema": (Fate.HONOURED, {"type": "OBJECT"}),
    "seed": (Fate.HONOURED, 5),
    "stop_sequences": (Fate.HONOURED, ["END"]),
    "thinking_config": (Fate.HONOURED, {"thinkingBudget": 0}),
    "top_k": (Fate.HONOURED, 5),
    "audio_transcription_config": (Fate.REFUSED, {"languageCodes": ["de"]}),
    "enable_affective_dialog": (Fate.REFUSED, True),
    "enable_enhanced_civic_answers": (Fate.REFUSED, True),
    "generation_output_config": (Fate.REFUSED, {"a": 1}),
    "image_config": (Fate.REFUSED, {"aspectRatio": "1:1"}),
    "logprobs": (Fate.REFUSED, 3),
    "model_selection_config": (Fate.REFUSED, {"featureSelectionPreference": "BALANCED"}),
    "response_format": (Fate.REFUSED, {"text": {}}),
    "response_modalities": (Fate.REFUSED, ["AUDIO"]),
    "routing_config": (Fate.REFUSED, {"autoMode": {}}),
    "speech_config": (Fate.REFUSED, {"languageCode": "de"}),
    "translation_config": (Fate.REFUSED, {"targetLanguageCode": "de"}),
    "audio_timestamp": (Fate.LISTED, True),
    "media_resolution": (Fate.LISTED, "MEDIA_RESOLUTION_LOW"),
}
"""Of ``generationConfig``."""

GEMINI_OF_THE_SDK = frozenset(
    ("http_options", "automatic_continuation", "automatic_function_calling", "should_return_http_response")
)
"""What the SDK keeps to itself."""

OFFICIAL: Mapping[str, tuple[Table, set[str]]] = {
    "anthropic": (
        ANTHROPIC,
        {
            *message_create_params.MessageCreateParamsStreaming.__annotations__,
            *beta_message_create_params.MessageCreateParamsStreaming.__annotations__,
        },
    ),
    "openai_chat": (CHAT, {*completion_create_params.CompletionCreateParamsStreaming.__annotations__}),
    "openai_responses": (RESPONSES, {*response_create_params.ResponseCreateParamsStreaming.__annotations__}),
    "gemini": (
        {**GEMINI, **GEMINI_CONFIG},
        {*gemini_types.GenerateContentConfig.model_fields, *gemini_types.GenerationConfig.model_fields}
        - GEMINI_OF_THE_SDK,
    ),
}

EARLIER: Mapping[str, frozenset[str]] = {
    "anthropic": frozenset(("temperature", "top_p", "top_k", "output_format")),
}
"""Parameters that clients send and the SDK's own types no longer have."""

PLAIN: Mapping[str, dict[str, Any]] = {
    "anthropic": {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "look", "input_schema": TOOL_SCHEMA}],
    },
    "openai_chat": {"messages": [{"role": "user", "content": "hi"}], "tools": [CHAT_TOOL]},
    "openai_responses": {"input": "hi", "tools": [{"type": "function", "name": "look", "parameters": TOOL_SCHEMA}]},
    "gemini": {
        "contents": [{"parts": [{"text": "hi"}]}],
        "tools": [{"functionDeclarations": [{"name": "look"}]}],
    },
}
"""A request without the parameter; with it, no other is missing."""

BESIDE: Mapping[tuple[str, str], dict[str, Any]] = {
    ("gemini", "response_json_schema"): {"response_mime_type": "application/json"},
    ("gemini", "response_schema"): {"response_mime_type": "application/json"},
}
"""Parameters that another one needs beside it."""


def with_fate(*fates: Fate) -> Iterable[tuple[str, str, Any]]:
    return [
        (protocol, name, value)
        for protocol, (table, _) in OFFICIAL.items()
        for name, (fate, value) in table.items()
        if fate in fates
    ]


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def body_with(protocol: str, members: Mapping[str, Any]) -> dict[str, Any]:
    if protocol != "gemini":
        return {**PLAIN[protocol], **members}
    config = {camel(name): value for name, value in members.items() if name in GEMINI_CONFIG}
    own = {camel(name): value for name, value in members.items() if name not in GEMINI_CONFIG}
    return {**PLAIN["gemini"], **own, "generationConfig": config}


def written(protocol: str, name: str) -> str:
    """The parameter as errors and lists name it."""
    if protocol != "gemini":
        return name
    return f"generationConfig.{camel(name)}" if name in GEMINI_CONFIG else camel(name)


def parsed(protocol: str, members: Mapping[str, Any]) -> ChatRequest:
    wire: WireProtocol = PROTOCOLS[protocol]
    return wire.parse_request(body_with(protocol, members))


@pytest.mark.parametrize("protocol", OFFICIAL)
def test_every_official_parameter_has_its_place(protocol: str) -> None:
    table, official = OFFICIAL[protocol]
    assert table.keys() - EARLIER.get(protocol, frozenset()) == official


@pytest.mark.parametrize(("protocol", "name", "value"), with_fate(Fate.HONOURED))
def test_an_honoured_parameter_changes_the_request(protocol: str, name: str, value: Any) -> None:
    beside = BESIDE.get((protocol, name), {})
    request = parsed(protocol, {**beside, name: value})
    assert request != parsed(protocol, beside)
    assert written(protocol, name) not in request.unused_fields


@pytest.mark.parametrize(("protocol", "name", "value"), with_fate(Fate.REFUSED))
def test_a_refused_parameter_is_named(protocol: str, name: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(protocol, {name: value})
    assert caught.value.field is not None
    assert caught.value.field.startswith(written(protocol, name))


@pytest.mark.parametrize(("protocol", "name", "value"), with_fate(Fate.LISTED))
def test_a_parameter_without_effect_is_listed(protocol: str, name: str, value: Any) -> None:
    assert written(protocol, name) in parsed(protocol, {name: value}).unused_fields


@pytest.mark.parametrize(("protocol", "name", "value"), with_fate(Fate.GIVEN))
def test_what_is_there_in_any_case_is_not_listed(protocol: str, name: str, value: Any) -> None:
    assert parsed(protocol, {name: value}) == parsed(protocol, {})


@pytest.mark.parametrize(
    ("protocol", "field"),
    [
        ("anthropic", "tools.1.name"),
        ("openai_chat", "tools.1.function.name"),
        ("openai_responses", "tools.1.name"),
        ("gemini", "tools.1.functionDeclarations.0.name"),
    ],
)
def test_two_tools_of_one_name_are_refused(protocol: str, field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(protocol, {"tools": [*PLAIN[protocol]["tools"], *PLAIN[protocol]["tools"]]})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("protocol", "name"), [(protocol, name) for protocol, name, _ in with_fate(*Fate) if name not in PLAIN[protocol]]
)
def test_a_parameter_that_is_null_is_absent(protocol: str, name: str) -> None:
    assert parsed(protocol, {name: None}) == parsed(protocol, {})
