"""Bad input: the protocol's own error body, the field's name, never a 500, and the session as it was."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.engine import Answer, FakeEngine

MESSAGES = "/v1/messages"
CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}

BAD: list[tuple[str, Any, str]] = [
    (MESSAGES, {}, "messages"),
    (MESSAGES, {"messages": []}, "messages"),
    (MESSAGES, {"messages": "hi"}, "messages"),
    (MESSAGES, {"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
    (MESSAGES, {"messages": [{"content": "x"}]}, "messages.0.role"),
    (MESSAGES, {"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "messages.0.content.0.type"),
    (
        MESSAGES,
        {
            "messages": [
                USER,
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]},
            ]
        },
        "messages.1.content.0.tool_use_id",
    ),
    (MESSAGES, {"messages": [USER], "max_tokens": "many"}, "max_tokens"),
    (MESSAGES, {"messages": [USER], "max_tokens": 0}, "max_tokens"),
    (MESSAGES, {"messages": [USER], "temperature": "hot"}, "temperature"),
    (MESSAGES, {"messages": [USER], "top_p": 7}, "top_p"),
    (MESSAGES, {"messages": [USER], "tools": {"name": "x"}}, "tools"),
    (MESSAGES, {"messages": [USER], "tools": [{"input_schema": {}}]}, "tools.0.name"),
    (
        MESSAGES,
        {"messages": [USER], "tool_choice": {"type": "any"}, "tools": [{"name": "t", "input_schema": {}}]},
        "tool_choice",
    ),
    (MESSAGES, {"messages": [USER], "stream": "yes"}, "stream"),
    (MESSAGES, {"messages": [USER], "model": 4}, "model"),
    (CHAT, {}, "messages"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
    (CHAT, {"messages": [{"role": "user", "content": {"a": 1}}]}, "messages.0.content"),
    (CHAT, {"messages": [USER, {"role": "tool", "content": "x", "tool_call_id": "c"}]}, "messages.1.tool_call_id"),
    (CHAT, {"messages": [USER], "max_tokens": -1}, "max_tokens"),
    (CHAT, {"messages": [USER], "n": 200}, "n"),
    (CHAT, {"messages": [USER], "logit_bias": {"5": 1}}, "logit_bias"),
    (CHAT, {"messages": [USER], "response_format": {"type": "json_object"}}, "response_format"),
    (CHAT, {"messages": [USER], "tool_choice": "required"}, "tool_choice"),
    (CHAT, {"messages": [USER], "stop": 5}, "stop"),
    (CHAT, {"messages": [USER], "seed": "x"}, "seed"),
    (CHAT, {"messages": [USER], "min_tokens": 9000}, "min_tokens"),
]


@pytest.mark.parametrize(("route", "body", "field"), BAD, ids=lambda value: str(value)[:60])
async def test_bad_field_is_named_and_nothing_changes(serve, encode, route, body, field) -> None:
    engine = FakeEngine([Answer([encode("fine")])])
    async with serve(engine) as server:
        good = {"messages": [USER]}
        async with server.http.post(MESSAGES, json=good) as response:
            assert response.status == 200
        async with server.http.get("/v1/sessions/default") as response:
            before = await response.json()
        async with server.http.post(route, json=body) as response:
            assert response.status == 400, await response.text()
            answer = await response.json()
        assert field in answer["error"]["message"]
        if route == MESSAGES:
            assert (answer["type"], answer["error"]["type"]) == ("error", "invalid_request_error")
        else:
            assert answer["error"]["param"].startswith(field)
        async with server.http.get("/v1/sessions/default") as response:
            assert await response.json() == before
    assert len(engine.requests) == 1


@pytest.mark.parametrize("route", [MESSAGES, CHAT, "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    "raw", [b"{", b"", b"[]", b"null", b"\xff\xfe", b'{"messages": NaN}', b"[" * 100_000], ids=repr
)
async def test_a_body_that_is_no_json_object(serve, route, raw) -> None:
    async with serve(FakeEngine()) as server:
        async with server.http.post(route, data=raw) as response:
            assert response.status == 400
            assert "body" in (await response.json())["error"]["message"]
        assert server.state.sessions.live() == []


@pytest.mark.parametrize("route", [MESSAGES, CHAT])
async def test_a_huge_body_is_413(serve, route) -> None:
    async with serve(FakeEngine(), max_body_bytes=2000) as server:
        async with server.http.post(route, json={"messages": [{"role": "user", "content": "x" * 4000}]}) as response:
            assert response.status == 413
            assert (await response.json())["error"]["message"]


@pytest.mark.parametrize("route", [MESSAGES, CHAT, "/v1/messages/count_tokens"])
async def test_an_unknown_model_is_404_and_lists_what_there_is(serve, route) -> None:
    async with serve(FakeEngine(), model_alias=("other",)) as server:
        async with server.http.post(route, json={"messages": [USER], "model": "gpt-9"}) as response:
            assert response.status == 404
            message = (await response.json())["error"]["message"]
        assert "slime-actor, other" in message
        assert server.state.sessions.live() == []


async def test_any_model_name_with_the_star_alias(serve, encode) -> None:
    async with serve(FakeEngine([Answer([encode("x")])]), model_alias=("*",)) as server:
        async with server.http.post(MESSAGES, json={"messages": [USER], "model": "gpt-9"}) as response:
            assert (await response.json())["model"] == "gpt-9"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/messages", 405),
        ("POST", "/v1/nothing", 404),
        ("DELETE", "/v1/sessions", 405),
        ("GET", "/v1/sessions/none", 404),
    ],
)
async def test_unknown_routes_are_error_bodies_too(serve, method, path, status) -> None:
    async with serve(FakeEngine()) as server, server.http.request(method, path) as response:
        assert response.status == status
        assert (await response.json())["error"]["message"]


async def test_an_overlong_session_name_is_400(serve) -> None:
    async with serve(FakeEngine()) as server:
        async with server.http.post(MESSAGES, json={"messages": [USER]}, headers={"x-api-key": "k" * 300}) as response:
            assert response.status == 400


async def test_true_is_not_one(serve) -> None:
    async with serve(FakeEngine()) as server:
        async with server.http.post(CHAT, json={"messages": [USER], "n": True}) as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"] == "n"


@pytest.mark.parametrize("expected", ["the unexpected", "\xfef\x8f", "100-continue, 2"], ids=ascii)
async def test_what_cannot_be_expected_is_refused_as_all_else(serve, expected) -> None:
    head = f"POST {MESSAGES} HTTP/1.1\r\nHost: a\r\nExpect: {expected}\r\nContent-Length: 2\r\n\r\n{{}}"
    async with serve(FakeEngine()) as server:
        reader, writer = await asyncio.open_connection(server.http._base_url.host, server.http._base_url.port)
        writer.write(head.encode("latin-1"))
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 417 ")
    assert b"application/json" in answer
    assert answer.endswith(
        b'{"error":{"type":"unknown_expectation","message":"only 100-continue can be expected","field":null}}'
    )
