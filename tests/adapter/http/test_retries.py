"""The same request again: joined, sampled beside, given again, or sampled anew."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import aiohttp
import pytest

from adapter.recorder import JournalRecorder
from adapter.replies import MAX_UNDELIVERED, ReplayBudget, ReplyBook
from adapter.reply import LiveReply
from tests.support.engine import Answer, FakeEngine
from tests.support.raw import raw_request
from tests.support.wait import until

MESSAGES = "/v1/messages"
CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}]}
STREAMED = {**BODY, "stream": True}
RETRY = {"x-stainless-retry-count": "1"}


async def ask(server, body, **headers):
    async with server.http.post(MESSAGES, json=body, headers=headers.get("headers", {})) as response:
        assert response.status == 200
        return await response.read()


def held(encode, hold):
    return Answer([encode("first"), encode(" second")], hold=hold, hold_before=1)


def turns(server):
    return server.state.sessions.find("default").trajectory.turn_count


def readers(server):
    """Connections that read the first reply."""
    return server.state.sessions.find("default").replies.get(1)._readers


async def test_a_retry_joins_the_running_reply_from_its_beginning(serve, encode) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([held(encode, hold)])
    async with serve(engine) as server, server.http.post(MESSAGES, json=STREAMED) as first:
        seen = await first.content.readany()
        async with server.http.post(MESSAGES, json=STREAMED, headers=RETRY) as second:
            hold.set()
            assert seen + await first.read() == await second.read()
        assert turns(server) == 1
    assert len(engine.requests) == 1


async def test_the_same_idempotency_key_joins_and_another_one_does_not(serve, encode) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([held(encode, hold), Answer([encode("other")], hold=hold)])
    async with serve(engine) as server:
        one = asyncio.create_task(ask(server, BODY, headers={"Idempotency-Key": "k"}))
        await until(lambda: len(engine.requests) == 1)
        same = asyncio.create_task(ask(server, BODY, headers={"Idempotency-Key": "k"}))
        other = asyncio.create_task(ask(server, BODY, headers={"Idempotency-Key": "o"}))
        await until(lambda: len(engine.requests) == 2 and readers(server) == 2)
        hold.set()
        assert await one == await same
        assert b"other" in await other
        assert turns(server) == 2


@pytest.mark.parametrize(("route", "members"), [(MESSAGES, {"temperature": 0.5}), (CHAT, {})])
async def test_a_key_cannot_be_used_for_another_request(serve, encode, route, members) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([held(encode, hold), Answer([encode("two")])])
    async with serve(engine) as server:
        one = asyncio.create_task(ask(server, BODY, headers={"Idempotency-Key": "k"}))
        await until(lambda: len(engine.requests) == 1)
        async with server.http.post(route, json=BODY | members, headers={"Idempotency-Key": "k"}) as response:
            assert response.status == 422
            error = (await response.json())["error"]
        assert error["type"] == "invalid_request_error"
        assert "Idempotency-Key" in error["message"]
        hold.set()
        await one
        assert len(engine.requests) == 1


async def test_the_same_body_without_a_sign_of_retry_is_a_sibling(serve, encode) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([held(encode, hold), held(encode, hold)])
    async with serve(engine) as server:
        asked = [asyncio.create_task(ask(server, BODY)) for _ in range(2)]
        await until(lambda: len(engine.requests) == 2)
        hold.set()
        await asyncio.gather(*asked)
        async with server.http.get("/v1/sessions/default") as response:
            assert len((await response.json())["paths"]) == 2


async def test_joining_keeps_a_reply_alive_whose_first_client_left(serve, encode) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([held(encode, hold)])
    async with serve(engine) as server, aiohttp.ClientSession(server.url) as leaver:
        first = await leaver.post(MESSAGES, json=STREAMED)
        await first.content.readany()
        retry = asyncio.create_task(ask(server, STREAMED, headers=RETRY))
        await until(lambda: readers(server) == 2)
        first.close()
        await until(lambda: readers(server) == 1)
        hold.set()
        assert b"message_stop" in await retry
        assert engine.closed == 0
        assert turns(server) == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("headers", [RETRY, {"Idempotency-Key": "k"}])
async def test_a_retry_that_comes_while_the_reply_is_being_stopped_is_sampled_anew(
    serve, encode, headers, stream
) -> None:
    stopped = asyncio.Event()

    class SlowToStop(FakeEngine):
        async def generate(self, request):
            try:
                async for chunk in super().generate(request):
                    yield chunk
            finally:
                await stopped.wait()

    engine = SlowToStop([held(encode, asyncio.Event()), Answer([encode("anew")])])
    body = {**BODY, "stream": stream}
    async with serve(engine) as server:
        async with raw_request(server.url, MESSAGES, body, headers) as client:
            await until(lambda: engine.requests)
            client.abort()
            await until(lambda: readers(server) == 0)
            retry = asyncio.create_task(ask(server, body, headers=headers))
            await until(lambda: len(engine.requests) == 2)
            stopped.set()
            assert b"anew" in await retry
        assert turns(server) == 1


async def test_a_delivered_reply_is_sampled_anew(serve, encode) -> None:
    engine = FakeEngine([Answer([encode("one")]), Answer([encode("two")])])
    async with serve(engine) as server:
        assert b"one" in await ask(server, BODY)
        assert b"two" in await ask(server, BODY, headers=RETRY)
        assert turns(server) == 2


async def test_a_committed_reply_that_nobody_got_is_given_again(serve, encode, monkeypatch) -> None:
    engine = FakeEngine([Answer([encode("precious")]), Answer([encode("another")])])
    async with serve(engine) as server:

        async def lose(self, connection):
            while self._reply.open:
                await self._reader.more(self._reply.events.end)
            raise ConnectionResetError

        with monkeypatch.context() as patch:
            patch.setattr("adapter.http.stream.EventStream._follow", lose)
            with suppress(aiohttp.ClientError):
                await ask(server, STREAMED)
        await until(lambda: turns(server) == 1)
        reordered = dict(reversed(STREAMED.items()))
        assert b"precious" in await ask(server, reordered)
        assert b"another" in await ask(server, STREAMED)
        assert turns(server) == 2
    assert len(engine.requests) == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_while_its_turn_is_being_saved_is_given_it_again(
    serve, encode, monkeypatch, tmp_path, stream
) -> None:
    on_disk, settled = asyncio.Event(), JournalRecorder.settled

    async def wait(self: JournalRecorder) -> None:
        await on_disk.wait()
        await settled(self)

    monkeypatch.setattr(JournalRecorder, "settled", wait)
    engine = FakeEngine([Answer([encode("precious")])])
    body = {**BODY, "stream": stream}
    async with serve(engine, journal=tmp_path) as server:
        async with raw_request(server.url, MESSAGES, body) as client:
            await until(lambda: server.state.sessions.known("default"))
            await until(lambda: turns(server) == 1)
            client.abort()
            reply = server.state.sessions.find("default").replies.get(1)
            await until(lambda: not reply.events.held)
            async with server.http.post("/v1/sessions/default/interrupt") as response:
                assert (await response.json())["interrupted"] == 0
        on_disk.set()
        assert b"precious" in await ask(server, body)
        assert turns(server) == 1


async def test_undelivered_replies_are_bounded(serve, encode) -> None:
    async def make(reply: LiveReply) -> None:
        reply.begin({})
        reply.commit(b"x")

    book = ReplyBook(ReplayBudget(total_bytes=10**6, keep_s=1000), session_bytes=10**6)
    for number in range(3 * MAX_UNDELIVERED):
        reply = LiveReply("r", {"number": number})
        book.add(reply)
        reply.start(make)
        await until(lambda reply=reply: not reply.open)
    found = [
        number for number in range(3 * MAX_UNDELIVERED) if book.find("r", {"number": number}, None, is_retry=False)
    ]
    assert found == list(range(2 * MAX_UNDELIVERED, 3 * MAX_UNDELIVERED))
