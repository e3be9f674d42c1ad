"""Schemas of request bodies: the names from the tables that the parsers read, the shapes of the members that matter from here.

A member that is honoured has its shape, or any; one that is refused may have the values that change nothing. All other members are
allowed, as the protocols allow them. Shapes are those that clients write; parsers take more of what amounts to the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from adapter.http.engine_control import LARGEST_VERSION, LONGEST_S, SHORTEST_LEASE_S, PauseMode
from adapter.protocols import (
    anthropic_request,
    console_request,
    gemini_request,
    openai_chat_request,
    openai_responses_request,
)
from adapter.protocols.knobs import INTEGERS, MAX_STOP_CHARACTERS, MAX_STOPS, NUMBERS
from adapter.sampling import FLOAT_RANGES, INTEGER_RANGES
from adapter.session_bodies import FINISH_FIELDS, OPEN_FIELDS, OnWeightLag
from adapter.trajectory.filters import ExportFilters, StaleScope
from adapter.types import HistoryPolicy, LabelKind

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
LIMIT: Schema = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
OBJECT: Schema = {"type": "object"}
_NAME: Schema = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,40}$"}
_STOPS: Schema = {
    "type": "array", "maxItems": MAX_STOPS, "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS},
}  # fmt: skip


def _object(required: Collection[str] = (), **properties: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def _array(items: Schema, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": least}


def _tool(**more: Any) -> Schema:
    return _object(("name", *more), name=_NAME, description=TEXT, **more)


_JSON_SCHEMA = _object(
    ("type",), type={"enum": ["object"]}, properties={"type": "object", "additionalProperties": OBJECT}
)


def _text_block(text: Schema) -> Schema:
    return _object(("type", "text"), type={"enum": ["text"]}, text=text)


_TEXT_BLOCK = _text_block(TEXT)
_SAID = _text_block({"type": "string", "minLength": 1})
_CONTENT: Schema = {"anyOf": [TEXT, _array(_TEXT_BLOCK, 1)]}
_SAMPLING: Schema = {
    **{name: {"type": "number", "minimum": low, "maximum": high} for name, (low, high) in NUMBERS.items()},
    **{name: {"type": "integer", "minimum": low, "maximum": high} for name, (low, high) in INTEGERS.items()},
}
_COMMON: Schema = {**_SAMPLING, "model": TEXT, "stream": FLAG, "chat_template_kwargs": OBJECT}


def _body(
    honoured: Collection[str], refused: Mapping[str, Collection[Any]], required: Collection[str], shapes: Schema
) -> Schema:
    """Raises: KeyError, if there is a shape for a member that the parser does not honour."""
    stray = shapes.keys() - set(honoured)
    if stray:
        raise KeyError(f"shapes of members that are not honoured: {sorted(stray)}")
    known = {name: shape for name, shape in _COMMON.items() if name in honoured} | shapes
    return {
        "type": "object",
        "properties": {
            **{name: known.get(name, True) for name in sorted(honoured)},
            **{name: {"enum": [None, *refused[name]]} for name in sorted(refused)},
        },
        "required": list(required),
    }


MESSAGES = _body(
    anthropic_request.HONOURED,
    anthropic_request.REFUSED,
    ("messages",),
    {
        "messages": _array(_object(("role", "content"), role={"enum": ["user", "assistant"]}, content=_CONTENT), 1),
        "system": _CONTENT,
        "max_tokens": LIMIT,
        "stop_sequences": _STOPS,
        "tools": _array(_tool(input_schema=_JSON_SCHEMA)),
        "tool_choice": _object(("type",), type={"enum": ["auto", "none"]}),
        "thinking": _object(("type",), type={"enum": ["adaptive", "disabled"]}),
    },
)

CHAT = _body(
    openai_chat_request.HONOURED,
    openai_chat_request.REFUSED,
    ("messages",),
    {
        "messages": _array(
            _object(("role", "content"), role={"enum": ["system", "user", "assistant"]}, content=_CONTENT), 1
        ),
        "max_tokens": LIMIT,
        "max_completion_tokens": LIMIT,
        "n": {"type": "integer", "minimum": 1, "maximum": 4},
        "stop": {"anyOf": [{"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}, _STOPS]},
        "logprobs": FLAG,
        "parallel_tool_calls": FLAG,
        "stream_options": _object((), include_usage=FLAG),
        "reasoning_effort": {"enum": ["low", "medium", "high"]},
        "tool_choice": {"enum": ["auto", "none"]},
        "tools": _array(
            _object(("type", "function"), type={"enum": ["function"]}, function=_tool(parameters=_JSON_SCHEMA))
        ),
    },
)

RESPONSES = _body(
    openai_responses_request.HONOURED,
    openai_responses_request.REFUSED,
    ("input",),
    {
        "input": {
            "anyOf": [
                {"type": "string", "minLength": 1},
                _array(_object(("role", "content"), role={"enum": ["system", "user", "assistant"]}, content=TEXT), 1),
            ]
        },
        "instructions": TEXT,
        "max_output_tokens": LIMIT,
        "metadata": {"type": "object", "additionalProperties": TEXT, "maxProperties": 4},
        "store": FLAG,
        "background": FLAG,
        "parallel_tool_calls": FLAG,
        "reasoning": _object((), effort={"enum": ["low", "medium", "high"]}),
        "tool_choice": {"enum": ["auto", "none"]},
        "tools": _array(_object(("type", "name"), type={"enum": ["function"]}, name=_NAME, parameters=_JSON_SCHEMA)),
        "previous_response_id": TEXT,
    },
)

_GEMINI_CONTENT = _object(("parts",), role={"enum": ["user", "model"]}, parts=_array(_object(("text",), text=TEXT), 1))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def _gemini() -> Schema:
    """The parser's names are those of the protocol buffers; clients write them in camel case, and they are read either way."""
    shapes = {**_SAMPLING, "max_output_tokens": LIMIT, "stop_sequences": _STOPS, "candidate_count": {"enum": [1, 2]}}
    config = {_camel(name): shapes.get(name, True) for name in sorted(gemini_request.CONFIG_HONOURED)}
    body = _body(
        gemini_request.HONOURED - {"model", "stream"},
        gemini_request.REFUSED,
        ("contents",),
        {
            "contents": _array(_GEMINI_CONTENT, 1),
            "system_instruction": _object(("parts",), parts=_array(_object(("text",), text=TEXT), 1)),
            "tools": _array(_object((), functionDeclarations=_array(_tool()))),
            "generation_config": _object((), **config),
        },
    )
    return body | {"properties": {_camel(name): schema for name, schema in body["properties"].items()}}


GEMINI = _gemini()
GEMINI_COUNTED: Schema = {
    "anyOf": [GEMINI, _object(("generateContentRequest",), generateContentRequest=GEMINI, contents=False)]
}
"""``countTokens`` takes contents, or a whole request in their place."""

CONSOLE = _body(
    console_request.HONOURED,
    console_request.REFUSED,
    ("input",),
    {
        "input": _array(_object(("role", "content"), role={"enum": ["user"]}, content=_array(_SAID, 1)), 1),
        "max_tokens": LIMIT,
        "stop": _STOPS,
        "session_id": {"type": "string", "maxLength": 40},
        "reconnect": FLAG,
    },
)

_SETTINGS: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        **{name: {"type": "number", "minimum": low, "maximum": high} for name, (low, high) in FLOAT_RANGES.items()},
        **{name: {"type": "integer", "minimum": low, "maximum": high} for name, (low, high) in INTEGER_RANGES.items()},
    },
}


def _closed(names: Collection[str], shapes: Schema) -> Schema:
    return {
        "type": "object",
        "properties": {name: shapes.get(name, True) for name in sorted(names)},
        "additionalProperties": False,
    }


_REWARD: Schema = {"anyOf": [{"type": "number"}, {"type": "object", "additionalProperties": {"type": "number"}}]}
_FILTERS: Schema = {
    "drop_labels": _array({"enum": list(LabelKind)}),
    "max_staleness": {"type": "integer", "minimum": 0},
    "current_version": {"type": "integer", "minimum": 0},
    "stale": {"enum": list(StaleScope)},
    "drop_truncated": FLAG,
}
OPEN = _closed(
    OPEN_FIELDS,
    {
        "sid": {"type": "string", "pattern": "^[A-Za-z0-9_~-]{1,60}$"},
        "sampling": _closed(("default", "pinned"), {"default": _SETTINGS, "pinned": _SETTINGS}),
        "policy": {"enum": list(HistoryPolicy)},
        "max_context_tokens": {"type": "integer", "minimum": 2},
        "max_turns": LIMIT,
        "max_session_tokens": LIMIT,
        "max_weight_lag": {"type": "integer", "minimum": 0},
        "on_weight_lag": {"enum": list(OnWeightLag)},
        "metadata": OBJECT,
    },
)
FINISH = _closed(
    FINISH_FIELDS,
    {
        "reward": _REWARD,
        "leaf_rewards": {"type": "object", "additionalProperties": _REWARD, "propertyNames": {"pattern": "^[1-9]$"}},
        "turn_rewards": {
            "type": "object",
            "additionalProperties": {"type": "number"},
            "propertyNames": {"pattern": "^[1-9]$"},
        },
        "filters": _closed(list(ExportFilters.__dataclass_fields__), _FILTERS),
        "metadata": OBJECT,
        "index": {"type": "integer", "minimum": 0},
        "group_index": {"type": "integer", "minimum": 0},
        "max_sample_tokens": LIMIT,
    },
)

_SECONDS: Schema = {"type": "number", "minimum": 0, "maximum": LONGEST_S}
PAUSE = _closed(
    ("mode", "deadline_s", "lease_s"),
    {"mode": {"enum": list(PauseMode)}, "deadline_s": _SECONDS, "lease_s": {**_SECONDS, "minimum": SHORTEST_LEASE_S}},
)
RESUME = _closed((), {})
WEIGHTS = _closed(
    ("version", "path", "model", "mode", "deadline_s"),
    {
        "version": {"type": "integer", "minimum": 0, "maximum": LARGEST_VERSION},
        "path": {"type": "string", "minLength": 1},
        "model": {"type": "string", "minLength": 1},
        "mode": {"enum": list(PauseMode)},
        "deadline_s": _SECONDS,
    },
) | {"required": ["version"]}
