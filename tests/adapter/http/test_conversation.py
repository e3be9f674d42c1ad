"""Stopping a session's turns, and reading its conversation."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import Any

import aiohttp
import pytest

from tests.adapter.http.test_events import BODY, CALL, CHAT, END, LOOK, MESSAGES
from tests.support.engine import Answer, FakeEngine
from tests.support.raw import raw_request
from tests.support.wait import until

SESSION = "/v1/sessions/default"


async def interrupt(server: Any) -> int:
    async with server.http.post(f"{SESSION}/interrupt") as response:
        assert response.status == 200
        return (await response.json())["interrupted"]


async def history(server: Any) -> dict[str, Any]:
    async with server.http.get(f"{SESSION}/history") as response:
        assert response.status == 200
        return await response.json()


def held(encode: Any, hold: asyncio.Event) -> Answer:
    return Answer([encode("first"), [*encode(" second"), END]], hold=hold, hold_before=1)


@pytest.mark.parametrize(("route", "complete"), [(MESSAGES, b"message_stop"), (CHAT, b"[DONE]")])
async def test_an_interrupted_stream_ends_as_a_failed_one(serve, encode, route, complete) -> None:
    engine = FakeEngine([held(encode, asyncio.Event())])
    async with serve(engine, tool_parser="xml") as server, raw_request(server.url, route, BODY) as client:
        await client.until("first")
        assert await interrupt(server) == 1
        assert engine.closed == 1
        trajectory = server.state.sessions.find("default").trajectory
        assert (trajectory.turn_count, trajectory.interrupted_tokens) == (0, len(encode("first")))
        seen = await client.rest()
        assert b"interrupted" in seen
        assert complete not in seen
        assert not client.complete
        assert await interrupt(server) == 0


async def test_an_interrupted_whole_reply_is_an_error_that_clients_do_not_retry(serve, encode) -> None:
    engine = FakeEngine([held(encode, asyncio.Event())])
    async with serve(engine) as server:
        asked = asyncio.create_task(server.http.post(MESSAGES, json={**BODY, "stream": False}).__aenter__())
        await until(lambda: engine.requests)
        assert await interrupt(server) == 1
        response = await asked
        assert response.status == 410
        assert "interrupted" in (await response.json())["error"]["message"]


async def test_every_running_turn_is_stopped_and_the_session_goes_on(serve, encode) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([held(encode, hold), held(encode, hold), Answer([[*encode("after"), END]])])
    async with serve(engine) as server:
        asked = [asyncio.create_task(server.http.post(MESSAGES, json=BODY).__aenter__()) for _ in range(2)]
        await until(lambda: len(engine.requests) == 2)
        assert await interrupt(server) == 2
        for response in await asyncio.gather(*asked):
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        async with server.http.post(MESSAGES, json=BODY) as response:
            assert b"after" in await response.read()
        assert server.state.sessions.find("default").trajectory.turn_count == 1


async def test_a_turn_in_the_background_is_stopped(serve, encode) -> None:
    engine = FakeEngine([held(encode, asyncio.Event())])
    async with serve(engine) as server:
        async with aiohttp.ClientSession(server.url) as page:
            (await page.post("/api/console/chat", json={"input": [{"content": [{"text": "hi"}]}]})).close()
        reply = server.state.sessions.find("default").replies.running()[0]
        await until(lambda: not reply.events.held)
        assert engine.closed == 0
        assert await interrupt(server) == 1
        assert engine.closed == 1


async def test_interrupting_a_session_that_is_not_there(serve) -> None:
    async with serve(FakeEngine()) as server:
        for request in (server.http.post(f"{SESSION}/interrupt"), server.http.get(f"{SESSION}/history")):
            async with request as response:
                assert response.status == 404


async def test_history_holds_reasoning_calls_results_and_turns(serve, encode) -> None:
    engine = FakeEngine([Answer([[*encode(f"<think>hm</think>{CALL}"), END]]), Answer([[*encode("ok"), END]])])
    async with serve(engine, tool_parser="hermes", reasoning_parser="think") as server:
        body = {"messages": [{"role": "user", "content": "hi"}], "tools": [LOOK], "system": "Be brief."}
        async with server.http.post(MESSAGES, json=body) as response:
            content = (await response.json())["content"]
        result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": "a cat"}
        body["messages"] += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
        async with server.http.post(MESSAGES, json=body) as response:
            assert response.status == 200
        answer = await history(server)
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": 1}}}
    assert answer["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call], "turn_index": 1},
        {"role": "tool", "content": "a cat"},
        {"role": "assistant", "content": "ok", "turn_index": 2},
    ]
    assert answer["turn_count"] == 2


async def test_history_is_the_main_loops_whatever_came_last(serve, encode) -> None:
    engine = FakeEngine([Answer([[*encode(text), END]]) for text in ("main", "Title")])
    title = {
        "messages": [{"role": "user", "content": "hi"}],
        "system": "You are a title generator. You output a title.",
    }
    async with serve(engine) as server:
        assert (await asked(server, {"messages": [{"role": "user", "content": "hi"}]})) == "main"
        assert (await asked(server, title)) == "Title"
        answer = await history(server)
    assert [message["content"] for message in answer["messages"]] == ["hi", "main"]


async def test_history_of_a_reply_that_went_on_from_a_beginning_has_it_once(serve, encode) -> None:
    engine = FakeEngine([Answer([[*encode(" is red."), END]])])
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The ball"}]
    async with serve(engine, tool_parser="xml") as server:
        await asked(server, {"messages": messages})
        answer = await history(server)
    assert [message["content"] for message in answer["messages"]] == ["hi", "The ball is red."]


async def test_history_of_a_session_without_turns_is_empty(serve) -> None:
    async with serve(FakeEngine()) as server:
        async with server.http.post("/v1/sessions", json={"sid": "default"}) as response:
            assert response.status == 201
        assert (await history(server))["messages"] == []


async def test_an_interrupted_reply_is_not_in_the_history(serve, encode) -> None:
    engine = FakeEngine([Answer([[*encode("one"), END]]), held(encode, asyncio.Event())])
    async with serve(engine) as server:
        await asked(server, {"messages": [{"role": "user", "content": "hi"}]})
        second = asyncio.create_task(server.http.post(MESSAGES, json={**BODY, "stream": False}).__aenter__())
        await until(lambda: len(engine.requests) == 2)
        await interrupt(server)
        with suppress(aiohttp.ClientError):
            (await second).release()
        assert [message["content"] for message in (await history(server))["messages"]] == ["hi", "one"]


async def asked(server: Any, body: dict[str, Any]) -> str:
    async with server.http.post(MESSAGES, json=body) as response:
        assert response.status == 200, await response.text()
        return (await response.json())["content"][0]["text"]


async def test_a_server_that_stops_leaves_no_turn_running_and_lets_followers_go(serve, encode) -> None:
    engine = FakeEngine([held(encode, asyncio.Event())])
    async with AsyncExitStack() as clients:
        async with serve(engine) as server:
            async with aiohttp.ClientSession(server.url) as page:
                (await page.post("/api/console/chat", json={"input": [{"content": [{"text": "hi"}]}]})).close()
            reply = server.state.sessions.find("default").replies.running()[0]
            await until(lambda: not reply.events.held)
            follower = await clients.enter_async_context(raw_request(server.url, f"{SESSION}/events"))
            await follower.until("created")
        assert engine.closed == 1
        await follower.rest()
        assert follower.complete
