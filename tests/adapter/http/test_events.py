"""Reading along: one reply's own events by number, and the live feed of a session."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from engine.errors import EngineFailed
from tests.support.engine import Answer, FakeEngine
from tests.support.sse import data_objects, read_until
from tests.support.wait import until

MESSAGES = "/v1/messages"
CHAT = "/v1/chat/completions"
REPLY = "/v1/sessions/default/replies/1/events"
FEED = "/v1/sessions/s/events"
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
END = 151645
LOOK = {"name": "look", "input_schema": {"type": "object"}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'


def numbered(raw: bytes) -> list[tuple[int, bytes]]:
    """``(id, the event without its id line)`` of every event; comments are left out."""
    events = []
    for block in raw.split(b"\n\n")[:-1]:
        if not block.startswith(b":"):
            line, _, rest = block.partition(b"\n")
            events.append((int(line.removeprefix(b"id: ")), rest + b"\n\n"))
    return events


async def get(server: Any, path: str, **headers: str) -> bytes:
    async with server.http.get(path, headers=headers) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        return await response.read()


async def status(server: Any, path: str, **headers: str) -> int:
    async with server.http.get(path, headers=headers) as response:
        return response.status


@pytest.mark.parametrize("route", [MESSAGES, CHAT])
async def test_a_reply_is_read_again_by_number(serve, encode, route) -> None:
    engine = FakeEngine([Answer([encode("one"), encode(" two"), [*encode(" three"), END]])])
    async with serve(engine) as server:
        async with server.http.post(route, json=BODY) as response:
            assert response.headers["x-rollserve-reply"] == "1"
            wire = await response.read()
        events = numbered(await get(server, REPLY))
        assert b"".join(event for _, event in events) == wire
        assert [number for number, _ in events] == list(range(len(events)))
        for seen in (0, 2, len(events) - 1):
            assert numbered(await get(server, REPLY, **{"Last-Event-ID": str(seen)})) == events[seen + 1 :]
        assert numbered(await get(server, f"{REPLY}?starting_after=2")) == events[3:]


async def test_a_running_reply_is_followed_and_its_observer_does_not_keep_it_alive(serve, encode) -> None:
    engine = FakeEngine([Answer([encode("first"), encode(" second")], hold=asyncio.Event(), hold_before=1)])
    async with serve(engine) as server, aiohttp.ClientSession(server.url) as client:
        response = await client.post(MESSAGES, json=BODY)
        await read_until(response, "first")
        async with server.http.get(REPLY) as observer:
            await read_until(observer, "first")
            response.close()
            await until(lambda: engine.closed == 1)
            with pytest.raises(aiohttp.ClientPayloadError):  # cut: nothing of it looks complete
                await observer.read()
        assert server.state.sessions.find("default").trajectory.turn_count == 0


async def test_an_observer_follows_to_the_end(serve, encode) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([Answer([encode("first"), encode(" second")], hold=hold, hold_before=1)])
    async with serve(engine) as server, server.http.post(MESSAGES, json=BODY) as response:
        seen = await read_until(response, "first")
        async with server.http.get(REPLY) as observer:
            raw = await read_until(observer, "first")
            hold.set()
            raw += await observer.read()
        assert b"".join(event for _, event in numbered(raw)) == seen + await response.read()


async def test_a_failed_reply_ends_with_its_error_event_for_observers_too(serve, encode) -> None:
    engine = FakeEngine([Answer([encode("first")], error=EngineFailed("broke"))])
    async with serve(engine) as server:
        with suppress(aiohttp.ClientPayloadError):
            async with server.http.post(MESSAGES, json=BODY) as response:
                await response.read()
        seen = b""
        async with server.http.get(REPLY) as observer:
            with pytest.raises(aiohttp.ClientPayloadError):
                while chunk := await observer.content.readany():
                    seen += chunk
    assert b"event: error" in seen
    assert b"broke" in seen
    assert b"message_stop" not in seen


async def test_a_whole_reply_is_one_event(serve, encode) -> None:
    engine = FakeEngine([Answer([[*encode("hello"), END]])])
    async with serve(engine) as server:
        async with server.http.post(MESSAGES, json={**BODY, "stream": False}) as response:
            body = await response.read()
        assert numbered(await get(server, REPLY)) == [(0, b"data: " + body + b"\n\n")]


async def test_unknown_and_expired_replies_and_bad_numbers(serve, encode) -> None:
    engine = FakeEngine([Answer([[*encode("hello"), END]])])
    async with serve(engine, replay_keep_s=0.0) as server:
        async with server.http.post(MESSAGES, json=BODY) as response:
            await response.read()
        await until(lambda: not server.state.sessions.find("default").replies.running())
        assert await status(server, REPLY) == 410
        assert await status(server, "/v1/sessions/default/replies/2/events") == 404
        assert await status(server, "/v1/sessions/default/replies/x/events") == 400
        assert await status(server, "/v1/sessions/nobody/replies/1/events") == 404


async def test_the_last_event_must_be_a_number(serve, encode) -> None:
    async with serve(FakeEngine([Answer([[*encode("hello"), END]])])) as server:
        async with server.http.post(MESSAGES, json=BODY) as response:
            await response.read()
        assert await status(server, REPLY, **{"Last-Event-ID": "soon"}) == 400
        assert await status(server, f"{REPLY}?starting_after=-1") == 400


async def test_what_a_client_has_taken_of_a_long_reply_goes_and_it_loses_nothing(serve, encode) -> None:
    ids = encode("word " * 400)
    hold = asyncio.Event()
    engine = FakeEngine([Answer([[token] for token in ids], hold=hold, hold_before=len(ids) - 1)])
    async with serve(engine, replay_reply_bytes=4096, tool_parser="xml") as server:
        async with server.http.post(MESSAGES, json=BODY) as response:
            reply = server.state.sessions.find("default").replies.running()[0]
            await until(lambda: reply.events.first > 0)
            assert await status(server, REPLY) == 410
            assert await status(server, REPLY, **{"Last-Event-ID": "0"}) == 410
            async with server.http.get(REPLY, headers={"Last-Event-ID": str(reply.events.first - 1)}) as observer:
                assert observer.status == 200
            hold.set()
            events = data_objects(await response.read())
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    assert text == "word " * 400


async def test_an_observer_that_falls_out_is_told_and_cut(serve, encode) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([Answer([[token] for token in encode("word " * 400)], hold=hold, hold_before=1)])
    console = {"input": [{"content": [{"text": "hi"}]}]}
    async with serve(engine, replay_reply_bytes=4096, tool_parser="xml") as server:
        async with aiohttp.ClientSession(server.url) as page:
            (await page.post("/api/console/chat", json=console)).close()
        reply = server.state.sessions.find("default").replies.running()[0]
        await until(lambda: not reply.events.held)
        async with server.http.get(REPLY) as observer:
            await read_until(observer, "word")
            hold.set()
            seen = b""
            with pytest.raises(aiohttp.ClientPayloadError):
                while chunk := await observer.content.readany():
                    seen += chunk
    (error,) = data_objects(seen)
    assert (error["status"], error["error"]["code"]) == ("failed", "gone")
    assert "no longer kept" in error["error"]["message"]
