"""What the tests of this folder share: the operations, a body that each takes, places that there are, and what answers must be.

``FUZZ_EXAMPLES`` is how many inputs are made up for each operation; the ordinary run tries a few, and the same each time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import requests
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from adapter.http.openapi import describe
from adapter.http.session_name import CLIENT_HEADERS
from adapter.http.speaking import protocol_of
from tests.support.sse import data_objects

RANDOM = "FUZZ_EXAMPLES" in os.environ
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "4"))
SECONDS = 30.0
"""Within which there is an answer. Nothing here takes a hundredth of it; it is to tell a hang."""

PREFIX = "/s/{sid}"
FEED = "/v1/sessions/{sid}/events"
"""Ends with its session, so it is given one that ends."""
PAUSE = "/v1/engine/pause"
"""Holds all that comes after it: let go on at once."""

ADMIN = "an-admin-key-of-the-fuzzing"


def examples(count: int) -> settings:
    """As many inputs for one operation."""
    return settings(
        max_examples=max(1, count),
        database=None,
        deadline=None,
        derandomize=not RANDOM,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )


_DESCRIPTION: Mapping[str, Any] = MappingProxyType(describe())
OPERATIONS = [(path, method) for path, item in _DESCRIPTION["paths"].items() for method in item]
WITH_BODY = [(path, method) for path, method in OPERATIONS if "requestBody" in _DESCRIPTION["paths"][path][method]]

NEVER = {("/v1/responses", "get"), (f"{PREFIX}/v1/responses", "get"), ("/v1/engine/workers/{operation}", "post")}
"""Only refuse: what would be a websocket, and what only another worker may ask."""

_TOOL = {
    "name": "lookup",
    "description": "d",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
}
_MESSAGES = {
    "max_tokens": 16,
    "system": [{"type": "text", "text": "sys"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "ok"}, {"type": "tool_use", "id": "t1", "name": "lookup", "input": {"q": "x"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "r", "is_error": True}]},
    ],
    "tools": [{"name": "lookup", "description": "d", "input_schema": _TOOL["parameters"]}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "disabled"},
    "metadata": {"user_id": "u"},
    "stop_sequences": ["END"],
    "temperature": 1,
}  # fmt: skip
_CHAT = {
    "max_completion_tokens": 16,
    "messages": [
        {"role": "system", "content": "sys"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": '{"q":1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
    ],
    "tools": [{"type": "function", "function": _TOOL}],
    "tool_choice": "auto",
    "n": 2,
    "logprobs": True,
    "stop": ["END"],
    "seed": 5,
    "chat_template_kwargs": {"enable_thinking": True},
}
_RESPONSES = {
    "max_output_tokens": 16,
    "instructions": "sys",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "lookup", "arguments": '{"q":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "r"},
    ],
    "tools": [{"type": "function", "strict": False, **_TOOL}],
    "tool_choice": "auto",
    "include": ["reasoning.encrypted_content"],
    "metadata": {"kind": "x"},
    "store": True,
}
_CONTENTS = {
    "systemInstruction": {"parts": [{"text": "sys"}]},
    "contents": [
        {"role": "user", "parts": [{"text": "hi"}]},
        {"role": "model", "parts": [{"text": "ok"}, {"functionCall": {"name": "lookup", "args": {"q": "x"}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "lookup", "response": {"output": "r"}}}]},
    ],
    "tools": [{"functionDeclarations": [{"name": "lookup", "parametersJsonSchema": _TOOL["parameters"]}]}],
    "generationConfig": {"temperature": 1, "topP": 0.9, "maxOutputTokens": 16, "stopSequences": ["END"], "seed": 5},
}
_VALID: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "/v1/messages": _MESSAGES,
        "/v1/messages/count_tokens": _MESSAGES,
        "/v1/chat/completions": _CHAT,
        "/v1/responses": _RESPONSES,
        "/v1/responses/input_tokens": _RESPONSES,
        "/api/console/chat": {
            "input": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "max_tokens": 16,
            "tools": [{"type": "function", "function": _TOOL}],
        },
        "/v1/sessions": {
            "sampling": {"default": {"temperature": 1.0}, "pinned": {"top_k": 5}},
            "policy": "keep",
            "max_turns": 4,
            "max_weight_lag": 1,
            "on_weight_lag": "drop",
            "metadata": {"a": [1]},
        },
        "/v1/sessions/{sid}/finish": {
            "reward": {"a": 1.0},
            "turn_rewards": {"1": 0.5},
            "filters": {"drop_truncated": True, "drop_labels": ["title"]},
            "metadata": {"a": [1]},
            "index": 0,
        },
        PAUSE: {"mode": "drain", "deadline_s": 1, "lease_s": 30},
        "/v1/engine/resume": {},
        "/v1/engine/weights": {"version": 1, "mode": "cut"},
        "/v1/engine/workers/{operation}": {},
    }
)


def share(path: str) -> int:
    """Inputs for one operation: fewer where another has the same handler and the same body."""
    return EXAMPLES // 2 if path.startswith((PREFIX, "/v1/models/{model}:")) else EXAMPLES


def plain(path: str) -> str:
    return path.removeprefix(PREFIX)


def valid_body(path: str) -> dict[str, Any]:
    """A body that the operation takes, with much of what it knows."""
    return _CONTENTS if "/models/" in path else _VALID[plain(path)]


def open_places(
    url: str, connection: requests.Session, sid: str, headers: Mapping[str, str] | None = None
) -> dict[str, str]:
    """A session, a stored response in it that was streamed in the background, and its reply: values for the names in paths."""
    opened = connection.post(f"{url}/v1/sessions", json={"sid": sid}, headers=headers, timeout=SECONDS)
    assert opened.status_code == 201, opened.text
    body = {"input": "hi", "stream": True, "background": True}
    response = connection.post(f"{url}/s/{sid}/v1/responses", json=body, headers=headers, timeout=SECONDS)
    assert response.status_code == 200, response.text
    events = data_objects(response.content)
    return {
        "sid": sid,
        "id": events[0]["response"]["id"],
        "reply": response.headers["x-rollserve-reply"],
        "model": "rollserve",
        "operation": "pause",
    }


def naming(path: str, sid: str) -> dict[str, str]:
    """Headers that name the session, where its path does not."""
    return {CLIENT_HEADERS[-1]: sid} if "{sid}" not in path and "{id}" in path else {}


def send(case: Any, url: str, connection: requests.Session) -> requests.Response:
    """What answered, held against the description. What runs only while others wait for it is ended."""
    arguments = case.as_transport_kwargs(base_url=url)
    with connection.request(**arguments, timeout=SECONDS, stream=True) as response:
        if case.path == FEED:
            connection.delete(f"{url}/v1/sessions/{case.path_parameters['sid']}", timeout=SECONDS)
        if case.path == PAUSE:
            connection.post(f"{url}/v1/engine/resume", timeout=SECONDS)
        assert response.content is not None  # read while the session is there, or ends
    own = [] if response.status_code == 503 else [not_a_server_error]
    case.validate_response(
        response, checks=[*own, status_code_conformance, content_type_conformance, response_schema_conformance]
    )
    return response


_FIELD = re.compile(r"\w*")
_ANYWHERE = frozenset({"body", "sid"})
"""Fields that are in no body: all of it, and the name of the session that a header gives."""


def assert_names_a_field(path: str, sent: Mapping[str, Any], body: Any) -> None:
    """``body``, of a 400, names a field of what was ``sent``, or one that could be: where the protocol has a place for that, and
    with what the message begins with elsewhere."""
    named = _named(path, body)
    assert named is not None, body
    schema = _DESCRIPTION["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    could_have = {
        name
        for option in (schema, *schema.get("anyOf", ()))
        for name, shape in option.get("properties", {}).items()
        if not (isinstance(shape, dict) and None in shape.get("enum", ()))  # refused, but for what changes nothing
    }
    found = _FIELD.match(named)
    assert named in sent or (found and found[0] in could_have | _ANYWHERE | sent.keys()), body


def _named(path: str, body: Any) -> str | None:
    protocol = protocol_of(path)
    error = body["error"]
    match None if protocol is None else protocol.name:
        case None:
            return error["field"]
        case "openai_chat" | "openai_responses":
            return error["param"]
        case "gemini":
            return error["details"][0]["fieldViolations"][0]["field"]
        case _:
            return error["message"]
