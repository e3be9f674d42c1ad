"""The live feed of a session."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from adapter.feed import SessionFeed
from engine.errors import EngineFailed
from tests.adapter.http.test_events import BODY, CALL, CHAT, END, FEED, LOOK, numbered, status
from tests.support.engine import Answer, FakeEngine
from tests.support.sse import data_objects, read_until
from tests.support.wait import until

MESSAGES = "/s/s/v1/messages"


async def open_session(server: Any) -> None:
    async with server.http.post("/v1/sessions", json={"sid": "s"}) as response:
        assert response.status == 201


async def finish(server: Any) -> None:
    async with server.http.post("/v1/sessions/s/finish") as response:
        assert response.status == 200


async def turn(server: Any, route: str = MESSAGES, **members: Any) -> bytes:
    async with server.http.post(route, json={**BODY, **members}) as response:
        assert response.status == 200
        return await response.read()


def short(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Object and what matters of it."""
    return [
        (event["object"], event.get("type"), event.get("status") or event.get("delta") or event.get("data"))
        for event in events
    ]


async def test_a_feed_shows_every_protocols_turns_and_ends_with_the_session(serve, encode) -> None:
    engine = FakeEngine([Answer([encode("one"), [*encode(" more"), END]]), Answer([[*encode("two"), END]])])
    async with serve(engine, tool_parser="xml") as server:
        await open_session(server)
        async with server.http.get(FEED) as feed:
            await turn(server)
            await turn(server, "/s/s" + CHAT, stream=False)
            await finish(server)
            raw = await feed.read()
    events = data_objects(raw)
    assert short([event for event in events if event["turn"] == 1]) == [
        ("response", None, "created"),
        ("message", "message", "in_progress"),
        ("content", "text", "one"),
        ("content", "text", " more"),
        ("message", None, "completed"),
        ("response", None, "completed"),
    ]
    assert short([event for event in events if event["turn"] == 2])[2] == ("content", "text", "two")
    assert [number for number, _ in numbered(raw)] == list(range(len(events)))


async def test_reasoning_calls_and_results(serve, encode) -> None:
    engine = FakeEngine([Answer([[*encode(f"<think>hm</think>{CALL}"), END]]), Answer([[*encode("ok"), END]])])
    async with serve(engine, tool_parser="hermes", reasoning_parser="think") as server:
        await open_session(server)
        async with server.http.get(FEED) as feed:
            async with server.http.post(MESSAGES, json={**BODY, "stream": False, "tools": [LOOK]}) as response:
                content = (await response.json())["content"]
            call = next(block for block in content if block["type"] == "tool_use")
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": "a cat"}
            messages = [
                *BODY["messages"],
                {"role": "assistant", "content": content},
                {"role": "user", "content": [result]},
            ]
            await turn(server, messages=messages, tools=[LOOK])
            await finish(server)
            events = data_objects(await feed.read())
    assert [event["type"] for event in events if event["object"] == "message" and "type" in event] == [
        "reasoning", "plugin_call", "plugin_call_output", "message",
    ]  # fmt: skip
    called, answered = (event["data"] for event in events if event.get("type") == "data")
    assert called == {"call_id": "call_1_1", "name": "look", "arguments": '{"at":1}'}
    assert answered == {"call_id": "call_1_1", "name": "look", "output": "a cat"}


async def test_a_follower_that_joins_in_the_middle_gets_the_reply_from_its_start(serve, encode) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([Answer([encode("first"), [*encode(" second"), END]], hold=hold, hold_before=1)])
    async with serve(engine, tool_parser="xml") as server:
        await open_session(server)
        async with server.http.post(MESSAGES, json=BODY) as response:
            await read_until(response, "first")
            async with server.http.get(FEED) as early:
                seen = await read_until(early, "first")
                async with server.http.get(FEED) as late:
                    seen_late = await read_until(late, "first")
                    hold.set()
                    await response.read()
                    await finish(server)
                    raw, raw_late = seen + await early.read(), seen_late + await late.read()
    assert raw == raw_late
    assert short(data_objects(raw))[0] == ("response", None, "created")
    assert "".join(event.get("delta", "") for event in data_objects(raw)) == "first second"


async def test_a_follower_that_comes_back_finds_no_gap(serve, encode) -> None:
    engine = FakeEngine([Answer([[*encode(text), END]]) for text in ("one", "two", "three")])
    async with serve(engine) as server:
        await open_session(server)
        async with aiohttp.ClientSession(server.url) as client, client.get(FEED) as feed:
            await turn(server)
            events = numbered(await read_until(feed, '"response","status":"completed"'))
        feed_of = server.state.sessions.find("s").feed
        await until(lambda: not feed_of._followers)
        await turn(server)
        async with server.http.get(FEED, headers={"Last-Event-ID": str(events[2][0])}) as feed:
            await turn(server)
            await finish(server)
            rest = numbered(await feed.read())
    assert rest[: len(events) - 3] == events[3:]
    assert [number for number, _ in rest] == list(range(3, 3 + len(rest)))
    assert b"two" in b"".join(event for _, event in rest)


async def test_without_followers_nothing_is_rendered_and_numbers_go_on(serve, encode) -> None:
    engine = FakeEngine([Answer([[*encode(text), END]]) for text in ("one", "two", "three")])
    async with serve(engine, replay_keep_s=0.0) as server:
        await open_session(server)
        feed_of = server.state.sessions.find("s").feed
        await turn(server)
        assert feed_of._buffer.end == 0
        async with aiohttp.ClientSession(server.url) as client, client.get(FEED) as feed:
            await turn(server)
            last = numbered(await read_until(feed, '"response","status":"completed"'))[-1][0]
        await until(lambda: not feed_of._live)
        assert feed_of._buffer.size == 0
        assert await status(server, FEED, **{"Last-Event-ID": str(last)}) == 410
        async with server.http.get(FEED) as feed:
            await turn(server)
            await finish(server)
            events = numbered(await feed.read())
        assert events[0][0] == last + 1
        assert await status(server, FEED) == 410


async def test_a_number_that_was_never_given_is_gone(serve) -> None:
    async with serve(FakeEngine()) as server:
        await open_session(server)
        assert await status(server, FEED, **{"Last-Event-ID": "7"}) == 410


async def test_failed_and_cut_turns_end_as_failed(serve, encode) -> None:
    hold = asyncio.Event()
    engine = FakeEngine(
        [
            Answer([encode("half")], error=EngineFailed("broke")),
            Answer([encode("cut"), encode("x")], hold=hold, hold_before=1),
        ]
    )
    async with serve(engine, tool_parser="xml") as server:
        await open_session(server)
        async with server.http.get(FEED) as feed:
            async with server.http.post(MESSAGES, json={**BODY, "stream": False}) as response:
                assert response.status == 502
            async with aiohttp.ClientSession(server.url) as client:
                response = await client.post(MESSAGES, json=BODY)
                await read_until(response, "cut")
                response.close()
            await until(lambda: engine.closed == 1)
            await finish(server)
            events = data_objects(await feed.read())
    ends = [event for event in events if event["object"] == "response" and event["status"] != "created"]
    assert [(event["turn"], event["status"], event["error"]["code"]) for event in ends] == [
        (1, "failed", "upstream_failed"),
        (2, "failed", "interrupted"),
    ]


async def test_two_turns_at_once_are_told_apart(serve, encode) -> None:
    hold = asyncio.Event()
    engine = FakeEngine(
        [Answer([encode(text), [*encode(" end"), END]], hold=hold, hold_before=1) for text in ("left", "right")]
    )
    async with serve(engine, tool_parser="xml") as server:
        await open_session(server)
        async with server.http.get(FEED) as feed:
            turns = [asyncio.create_task(turn(server)) for _ in range(2)]
            await until(lambda: len(engine.requests) == 2)
            hold.set()
            await asyncio.gather(*turns)
            await finish(server)
            events = data_objects(await feed.read())
    for number, text in ((1, "left end"), (2, "right end")):
        own = [event for event in events if event["turn"] == number]
        assert "".join(event.get("delta", "") for event in own) == text
        assert (own[0]["status"], own[-1]["status"]) == ("created", "completed")


async def test_a_feed_of_a_quiet_session_says_that_it_lives(serve) -> None:
    async with serve(FakeEngine(), keepalive_s=0.02) as server:
        await open_session(server)
        async with server.http.get(FEED) as feed:
            seen = b""
            while seen.count(b": keepalive") < 3:
                seen += await feed.content.readany()
    assert not data_objects(seen)


async def test_the_feed_of_a_dropped_session_ends(serve) -> None:
    async with serve(FakeEngine()) as server:
        await open_session(server)
        async with server.http.get(FEED) as feed:
            async with server.http.delete("/v1/sessions/s") as response:
                assert response.status == 204
            assert not data_objects(await feed.read())
        assert await status(server, FEED) == 404


async def test_a_follower_that_comes_back_in_time_stops_the_clock() -> None:
    feed = SessionFeed(keep_bytes=4096, linger_s=3600)
    with feed.follow():
        assert feed._idle_timer is None
    clock = feed._idle_timer
    assert clock is not None
    with feed.follow():
        assert clock.cancelled()
    feed.close()
    assert feed._idle_timer is not None
    assert feed._idle_timer.cancelled()
