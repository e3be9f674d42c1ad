"""Streams that survive, seen from a bare socket: what a client gets when the engine, the network or the client itself fails."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from adapter.config import Config
from adapter.http.stream import Connection, EventStream
from engine.errors import EngineFailed, EngineTimeout, EngineUnavailable
from tests.support.engine import Answer, FakeEngine
from tests.support.raw import raw_request
from tests.support.wait import until

MESSAGES = "/v1/messages"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
CONSOLE = "/api/console/chat"
END = 151645
HELLO = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    MESSAGES: {"messages": HELLO, "stream": True},
    CHAT: {"messages": HELLO, "stream": True},
    RESPONSES: {"input": "hi", "stream": True},
    CONSOLE: {"input": [{"content": [{"text": "hi"}]}]},
}
COMPLETE = {
    MESSAGES: b"message_stop",
    CHAT: b"[DONE]",
    RESPONSES: b"response.completed",
    CONSOLE: b'"response","status":"completed"',
}
ROUTES = pytest.mark.parametrize("route", BODIES)
SMALL = 64 * 1024
"""Bytes of a receive buffer. Much smaller ones hold less than a segment of the loopback device, and make it crawl."""
EVENTS = 5_000
"""Of some 200 bytes each: more than all buffers on the way hold (``UNSENT_BYTES``), less than Linux would (``tcp_wmem``, 4 MB)."""


def held(encode: Any, hold: asyncio.Event) -> Answer:
    return Answer([encode("first"), [*encode(" second"), END]], hold=hold, hold_before=1)


@ROUTES
async def test_a_stream_that_breaks_after_some_tokens_never_looks_complete(serve, encode, route) -> None:
    engine = FakeEngine([Answer([encode("first"), encode(" second")], error=EngineFailed("broke"))])
    async with serve(engine) as server, raw_request(server.url, route, BODIES[route]) as client:
        seen = await client.rest()
    assert client.status == 200
    assert b"first" in seen
    assert b"broke" in seen
    assert COMPLETE[route] not in seen
    assert not client.complete


@ROUTES
async def test_a_whole_stream_ends_as_it_should(serve, encode, route) -> None:
    engine = FakeEngine([Answer([encode("first"), [*encode(" second"), END]])])
    async with serve(engine) as server, raw_request(server.url, route, BODIES[route]) as client:
        seen = await client.rest()
    assert COMPLETE[route] in seen
    assert client.complete


@ROUTES
async def test_headers_and_a_first_event_are_there_before_the_first_token(serve, encode, route) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([Answer([[*encode("late"), END]], hold=hold)])
    async with serve(engine, first_event_wait_s=0.01) as server:
        async with raw_request(server.url, route, BODIES[route]) as client:
            seen = await client.until("data: ")
            assert b"200 OK" in seen
            assert b"late" not in seen
            hold.set()
            await client.until("late")


@ROUTES
async def test_an_engine_that_is_silent_is_filled_with_signs_of_life_then_an_error(serve, encode, route) -> None:
    hold = asyncio.Event()
    engine = FakeEngine(
        [Answer([encode("first"), encode("x")], hold=hold, hold_before=1, error=EngineTimeout("silent"))]
    )
    sign = {MESSAGES: "event: ping", CHAT: '"delta":{}', RESPONSES: "response.in_progress", CONSOLE: ": keepalive"}[
        route
    ]
    async with serve(engine, keepalive_s=0.02) as server:
        async with raw_request(server.url, route, BODIES[route]) as client:
            before = (await client.until("first")).count(sign.encode())
            while client.seen.count(sign.encode()) < before + 3:
                await client.more()
            hold.set()
            seen = await client.rest()
    assert b"silent" in seen
    assert COMPLETE[route] not in seen
    assert not client.complete


async def test_no_sign_of_life_while_there_is_life(serve, encode) -> None:
    engine = FakeEngine([Answer([encode("first"), [*encode(" second"), END]])])
    async with serve(engine, keepalive_s=60.0) as server:
        async with raw_request(server.url, CHAT, BODIES[CHAT]) as client:
            assert b'"delta":{},"finish_reason":null' not in await client.rest()


@ROUTES
async def test_an_engine_that_cannot_be_reached_is_a_503_that_says_when_to_come_again(serve, route) -> None:
    engine = FakeEngine(unavailable=EngineUnavailable("no connection"))
    async with serve(engine, first_event_wait_s=0.0) as server:
        async with raw_request(server.url, route, BODIES[route]) as client:
            head, _, body = (await client.until("no connection")).partition(b"\r\n\r\n")
    assert client.status == 503
    assert b"\r\nRetry-After: 10" in head
    assert b"text/event-stream" not in head
    assert body.startswith(b"{")
    assert not engine.requests


@ROUTES
async def test_every_429_says_when_to_come_again(serve, encode, route) -> None:
    engine = FakeEngine([Answer([[*encode("ok"), END]])])
    async with serve(engine, max_turns=1) as server:
        async with raw_request(server.url, route, BODIES[route]) as client:
            await client.rest()
        async with raw_request(server.url, route, BODIES[route]) as client:
            head = (await client.until("}")).partition(b"\r\n\r\n")[0]
    assert client.status == 429
    assert b"\r\nRetry-After: 1" in head
    assert b"x-should-retry: false" in head


@pytest.mark.parametrize("route", [MESSAGES, CHAT, RESPONSES])
async def test_a_client_that_is_killed_frees_the_engine(serve, encode, route) -> None:
    engine = FakeEngine([held(encode, asyncio.Event())])
    async with serve(engine) as server, raw_request(server.url, route, BODIES[route]) as client:
        await client.until("first")
        client.abort()
        await until(lambda: engine.closed == 1)
        assert server.state.sessions.find("default").trajectory.turn_count == 0


async def test_a_client_that_leaves_is_no_fault_in_the_log(serve, encode, monkeypatch, caplog) -> None:
    """Seen by the write that finds the connection gone, before anything else tells of it."""

    async def gone(self: EventStream, connection: Connection) -> None:
        raise ConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr(EventStream, "_follow", gone)
    caplog.set_level("INFO")
    engine = FakeEngine([held(encode, asyncio.Event())])
    async with serve(engine) as server, raw_request(server.url, MESSAGES, BODIES[MESSAGES]) as client:
        await client.rest()
        await until(lambda: engine.closed == 1)
    assert not client.complete
    assert "client_gone" in [record.message for record in caplog.records]
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def long_answer(encode: Any, **members: Any) -> Answer:
    """A reply of so many events that they are not all sent ahead of a reader that takes none."""
    return Answer([[token] for token in encode("word " * EVENTS)][:EVENTS], **members)


async def test_a_slow_reader_holds_up_nobody_and_gets_everything_in_the_end(serve, encode) -> None:
    engine = FakeEngine([long_answer(encode), Answer([[*encode("other"), END]])])
    async with serve(engine, tool_parser="xml", replay_reply_bytes=4096) as server:
        async with raw_request(server.url, CHAT, BODIES[CHAT], receive_buffer=SMALL, reads=False) as slow:
            session = server.state.sessions.find_or_open("default")
            await until(lambda: session.trajectory.turn_count == 1)
            reply = session.replies.get(1)
            async with raw_request(server.url, MESSAGES, BODIES[MESSAGES]) as quick:
                assert b"other" in await quick.rest()
            assert not slow.seen
            assert reply.events.held
            assert reply.state == "committed"
            await slow.rest()
            assert slow.seen.count(b'"content":') == EVENTS
            assert slow.complete
            await until(lambda: reply.state == "delivered")


async def test_a_reader_that_has_stalled_is_cut_and_its_turn_ends(serve, encode) -> None:
    engine = FakeEngine([long_answer(encode, hold=asyncio.Event(), hold_before=EVENTS - 1)])
    async with serve(engine, tool_parser="xml", stalled_reader_s=0.2, keepalive_s=0.1) as server:
        async with raw_request(server.url, CHAT, BODIES[CHAT], receive_buffer=SMALL, reads=False):
            await until(lambda: engine.closed == 1)
        assert server.state.sessions.find("default").trajectory.turn_count == 0


class Clock:
    """A loop's clock that stands still until it is set."""

    now = 0.0

    def time(self) -> float:
        return self.now


class Socket:
    """A transport with ``unsent`` bytes in its buffer."""

    unsent = 0
    aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.aborted = True


async def test_a_reader_that_takes_a_byte_now_and_then_is_not_cut() -> None:
    clock, transport = Clock(), Socket()
    request = SimpleNamespace(transport=transport, path="/")
    connection = Connection(request, Config(stalled_reader_s=10.0), {}, lambda: None)  # type: ignore[arg-type]
    connection._loop = clock  # type: ignore[assignment]

    async def writing() -> None:
        for unsent in (300, 299, 298):
            clock.now += 9.0
            transport.unsent = unsent
            connection._look_for_progress()
            assert not transport.aborted
        clock.now += 9.0
        connection._look_for_progress()
        assert not transport.aborted
        clock.now += 1.0
        connection._look_for_progress()
        assert transport.aborted

    await connection._watched(writing())
