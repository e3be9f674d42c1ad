"""Streams: real, cancelled with their client, and never complete-looking when they failed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import aiohttp
import pytest

from adapter.preparing import prepare_turn
from adapter.types import ChatRequest, Label
from engine.errors import EngineFailed, EngineRejected, EngineTimeout, EngineUnavailable
from engine.types import FinishReason
from tests.support.engine import Answer, FakeEngine
from tests.support.sse import events_of
from tests.support.wait import until

MESSAGES = "/v1/messages"
CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
ROUTES = pytest.mark.parametrize("route", [MESSAGES, CHAT])


@ROUTES
async def test_a_delta_leaves_while_the_engine_still_works(serve, encode, route) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([Answer([encode("first"), encode(" second")], hold=hold, hold_before=1)])
    async with serve(engine, tool_parser="xml") as server, server.http.post(route, json=BODY) as response:
        seen = b""
        while b"first" not in seen:
            seen += await response.content.readany()
        assert b"second" not in seen
        hold.set()
        assert b"second" in await response.read()


@pytest.mark.parametrize("stream", [True, False])
@ROUTES
async def test_nothing_looks_complete_before_the_turn_is_committed(serve, encode, route, stream, monkeypatch) -> None:
    def refuse(self, *turn, **more):
        raise RuntimeError("the record cannot be written")

    monkeypatch.setattr("adapter.trajectory.Trajectory.commit", refuse)
    engine = FakeEngine([Answer([encode("first"), encode(" last")])])
    async with serve(engine) as server, server.http.post(route, json={**BODY, "stream": stream}) as response:
        seen = b""
        with suppress(aiohttp.ClientPayloadError):
            while chunk := await response.content.readany():
                seen += chunk
    assert response.status == (200 if stream else 500)
    assert b"internal error" in seen
    assert b"message_stop" not in seen
    assert b"[DONE]" not in seen
    assert b"record cannot be written" not in seen


@pytest.mark.parametrize("stream", [True, False])
@ROUTES
async def test_a_client_that_leaves_cancels_the_engine_and_leaves_no_turn(serve, encode, route, stream) -> None:
    engine = FakeEngine([Answer([encode("first"), encode(" second")], hold=asyncio.Event(), hold_before=1)])
    async with serve(engine) as server:
        task = asyncio.create_task(server.http.post(route, json={**BODY, "stream": stream}).__aenter__())
        await until(lambda: engine.requests)
        if stream:
            response = await task
            await response.content.readany()
            response.close()
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: engine.closed == 1)
        session = server.state.sessions.find("default")
        await until(lambda: not session.in_flight)
        assert session.trajectory.turn_count == 0


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (EngineUnavailable("down"), 503),
        (EngineRejected("no"), 400),
        (EngineTimeout("silent"), 504),
        (EngineFailed("broke"), 502),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
@ROUTES
async def test_a_failure_before_the_first_token_is_a_plain_error(serve, route, error, status, stream) -> None:
    engine = FakeEngine([Answer([], error=error)])
    async with serve(engine) as server:
        async with server.http.post(route, json={**BODY, "stream": stream}) as response:
            assert response.status == status
            assert response.content_type == "application/json"
            assert str(error) in (await response.json())["error"]["message"]
        assert server.state.sessions.find("default").trajectory.turn_count == 0


@ROUTES
async def test_a_failure_after_the_first_token_is_an_event_and_no_end(serve, encode, route) -> None:
    engine = FakeEngine([Answer([encode("first")], error=EngineFailed("broke"))])
    async with serve(engine) as server:
        seen = b""
        async with server.http.post(route, json=BODY) as response:
            with pytest.raises(aiohttp.ClientPayloadError):
                while True:
                    chunk = await response.content.readany()
                    assert chunk
                    seen += chunk
        assert b"broke" in seen
        assert b"message_stop" not in seen
        assert b"[DONE]" not in seen
        assert b'finish_reason":"' not in seen
        assert server.state.sessions.find("default").trajectory.turn_count == 0


@ROUTES
async def test_an_engine_that_cancels_by_itself_has_failed(serve, encode, route) -> None:
    engine = FakeEngine([Answer([encode("ok")], reason=FinishReason.CANCELLED)])
    async with serve(engine) as server:
        async with server.http.post(route, json={**BODY, "stream": False}) as response:
            assert response.status == 502
        assert server.state.sessions.find("default").trajectory.turn_count == 0


@pytest.mark.parametrize(("route", "sign"), [(MESSAGES, "ping"), (CHAT, "chat.completion.chunk")])
async def test_signs_of_life_while_the_engine_is_silent(serve, encode, route, sign) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([Answer([encode("late")], hold=hold)])
    async with serve(engine, first_event_wait_s=0.0, keepalive_s=0.02, tool_parser="xml") as server:
        async with server.http.post(route, json=BODY) as response:
            seen = b""
            while seen.count(sign.encode()) < 8:
                seen += await response.content.readany()
            hold.set()
            seen += await response.read()
    events = events_of(seen)
    assert "late" in seen.decode()
    assert events[-1][1] == "[DONE]" or events[-1][0] == "message_stop"


async def test_empty_reply(serve) -> None:
    engine = FakeEngine([Answer([[]], reason=FinishReason.LENGTH)])
    async with serve(engine) as server:
        async with server.http.post(MESSAGES, json={**BODY, "stream": False}) as response:
            reply = await response.json()
        assert (reply["content"], reply["stop_reason"]) == ([], "max_tokens")
        async with server.http.post("/v1/sessions/default/finish") as response:
            assert (await response.json())["samples"] == []


async def test_the_accept_header_alone_asks_for_a_stream(serve, encode) -> None:
    engine = FakeEngine([Answer([encode("ok")])])
    body = {"messages": BODY["messages"]}
    async with serve(engine) as server:
        async with server.http.post(MESSAGES, json=body, headers={"Accept": "text/event-stream"}) as response:
            assert response.content_type == "text/event-stream"


async def test_closing_a_turn_closes_the_generation_before_it_returns(serve, encode) -> None:
    engine = FakeEngine([Answer([encode("first"), encode(" second")])])
    async with serve(engine, tool_parser="xml") as server:
        session = server.state.sessions.find_or_open("s")
        request = ChatRequest(messages=({"role": "user", "content": "hi"},))
        services = server.state.services
        watch = services.watching.turn("test", "slime-actor")
        turn = await prepare_turn(services, session, 1, request, Label(), watch)
        events = turn.events()
        assert await anext(events)
        await events.aclose()
        assert engine.closed == 1
        assert (session.trajectory.turn_count, session.trajectory.interrupted_tokens) == (0, len(encode("first")))
