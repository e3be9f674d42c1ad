"""A reply that its engine could not finish: the agent sees one reply, the record its segments, a trainer can ask for each again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from adapter.render.prompt import Renderer
from engine.affinity import ranked
from engine.continuation import seed_at
from engine.errors import EngineFailed, EngineUnavailable
from engine.pool import Pool, PoolOptions
from tests.adapter.http.test_keep import END, ask, finish, open_session, user
from tests.support.engine import Answer, FakeEngine
from tests.support.sse import data_objects, read_until
from tests.support.wait import until

MESSAGES = "/s/s/v1/messages"
ADDRESSES = ranked("s", {"one:1": 0, "two:1": 0})
"""The home of session ``s`` first."""
GONE = EngineFailed("the generation broke off: Socket closed")


@dataclass
class Endpoint(FakeEngine):
    """A fake engine as one endpoint of a pool. ``stopped`` has the ids of the generations that were asked to end."""

    stopped: list[str] = field(default_factory=list)
    losses: int = 0

    def on_loss(self, tell: Callable[[], None]) -> None:
        """Its connection never is."""

    async def control(self, operation: str, **arguments: Any) -> dict[str, Any]:
        await self.connect()
        return {"op": operation, "weight_version": self.info.weight_version}

    async def stop(self, request_id: str) -> None:
        self.stopped.append(request_id)

    def abort(self, request_id: str) -> None:
        self.stopped.append(request_id)

    async def close(self) -> None:
        return None


@dataclass
class Two:
    """A pool of two endpoints behind an adapter: ``home`` of the session ``s``, and the ``other``."""

    home: Endpoint
    other: Endpoint

    @asynccontextmanager
    async def pool(self, **options: Any) -> AsyncIterator[Pool]:
        endpoints = dict(zip(ADDRESSES, (self.home, self.other), strict=True))

        async def open_client(address: str) -> Endpoint:
            await endpoints[address].connect()
            return endpoints[address]

        async with Pool(ADDRESSES, open_client, PoolOptions(check_interval_s=0.05, **options)) as pool:
            yield pool


async def turns(server: Any) -> list[dict[str, Any]]:
    async with server.http.get("/v1/sessions/s/explain") as response:
        return list((await response.json())["turns"])


@pytest.fixture
def broken(encode) -> tuple[Two, list[int]]:
    """The home gives four tokens and breaks off, the other one the rest; and all of them."""
    ids = [*encode("The reply goes on, wherever it is."), END]
    return Two(Endpoint([Answer([ids[:3], ids[3:4]], error=GONE)]), Endpoint([Answer([ids[4:]], cached_tokens=7)])), ids


@pytest.mark.parametrize("stream", [False, True])
async def test_the_agent_sees_one_reply(serve, broken, stream: bool) -> None:
    two, ids = broken
    async with two.pool() as pool, serve(pool) as server:
        await open_session(server)
        body = {"messages": [user("go")], "max_tokens": 50, "stream": stream}
        async with server.http.post(MESSAGES, json=body) as response:
            assert response.status == 200
            raw = await response.read()
        texts = [data["delta"].get("text", "") for data in data_objects(raw) if data["type"] == "content_block_delta"]
        text = "".join(texts) if stream else (await response.json())["content"][0]["text"]
        assert text == "The reply goes on, wherever it is."
        assert two.other.requests[0].prompt_ids.tolist() == [*two.home.requests[0].prompt_ids.tolist(), *ids[:4]]


async def test_the_record_has_the_segments_and_survives_a_restart(serve, broken, tmp_path: Path) -> None:
    two, ids = broken
    async with two.pool() as pool:
        async with serve(pool, journal=tmp_path) as server:
            await open_session(server)
            reply, _ = await ask(server, [user("go")], max_tokens=50)
            assert "cache_read_input_tokens" not in reply["usage"]
            (turn,) = await turns(server)
        seed = two.home.requests[0].sampling.seed
        known = {"version": 3, "start": 0, "endpoint": ADDRESSES[0], "seed": seed, "cached_tokens": None}
        rest = {"start": 4, "endpoint": ADDRESSES[1], "seed": seed_at(seed, 4), "cached_tokens": 7}
        assert turn["segments"] == [known, {**known, **rest}]
        assert two.other.requests[0].sampling.seed == seed_at(seed, 4)
        async with serve(pool, journal=tmp_path) as server:
            assert (await turns(server))[0]["segments"] == turn["segments"]
            (sample,) = (await finish(server))["samples"]
    assert sample["tokens"][-len(ids) :] == ids
    assert sample["metadata"]["turns"][0]["segments"] == [[0, seed], [4, seed_at(seed, 4)]]
    assert sum(sample["loss_mask"]) == len(ids)


async def test_a_turn_in_one_segment_says_where_it_was_made(serve, encode) -> None:
    two = Two(Endpoint([Answer([[*encode("Whole."), END]], cached_tokens=5)]), Endpoint())
    async with two.pool() as pool, serve(pool) as server:
        await open_session(server)
        reply, _ = await ask(server, [user("go")])
        assert reply["usage"]["cache_read_input_tokens"] == 5
        (turn,) = await turns(server)
        assert [(each["start"], each["endpoint"], each["cached_tokens"]) for each in turn["segments"]] == [
            (0, ADDRESSES[0], 5)
        ]
        (sample,) = (await finish(server))["samples"]
    assert "segments" not in sample["metadata"]["turns"][0]


async def test_a_stream_shows_life_while_its_reply_waits_for_an_engine(serve, encode) -> None:
    ids = [*encode("The reply goes on."), END]
    two = Two(Endpoint([Answer([ids[:2]], error=GONE)]), Endpoint([Answer([ids[2:]])]))
    two.other.unavailable = EngineUnavailable("not there")
    async with two.pool(failover_wait_s=60) as pool, serve(pool, keepalive_s=0.05) as server:
        await open_session(server)
        gate = asyncio.Event()
        two.home.answers[0].hold, two.home.answers[0].hold_before = gate, 0
        body = {"messages": [user("go")], "stream": True}
        async with server.http.post(MESSAGES, json=body) as response:
            two.home.unavailable = EngineUnavailable("gone")
            gate.set()
            seen = await read_until(response, "content_block_delta")
            seen += await read_until(response, "ping")
            assert b"message_stop" not in seen
            two.other.unavailable = None
            seen += await response.read()
        text = "".join(
            data["delta"].get("text", "") for data in data_objects(seen) if data["type"] == "content_block_delta"
        )
    assert text == "The reply goes on."


async def test_a_client_that_leaves_while_its_reply_waits_leaves_nothing(serve, encode) -> None:
    two = Two(Endpoint([Answer([encode("The reply")], error=GONE)]), Endpoint())
    two.other.unavailable = EngineUnavailable("not there")
    async with two.pool(failover_wait_s=60) as pool, serve(pool) as server:
        await open_session(server)
        gate = asyncio.Event()
        two.home.answers[0].hold, two.home.answers[0].hold_before = gate, 0
        async with server.http.post(MESSAGES, json={"messages": [user("go")], "stream": True}) as response:
            two.home.unavailable = EngineUnavailable("gone")
            gate.set()
            await read_until(response, "content_block_delta")
            response.close()
        session = server.state.sessions.find("s")
        await until(lambda: not session.in_flight)
        assert session.trajectory.turn_count == 0
        assert {state.live for state in pool.endpoints()} == {0}


async def test_readiness_needs_one_endpoint_and_names_the_others(serve) -> None:
    two = Two(Endpoint(), Endpoint())
    two.other.unavailable = EngineUnavailable("it burns")
    async with two.pool() as pool, serve(pool) as server:
        async with server.http.get("/readyz") as response:
            assert response.status == 200
            endpoints = (await response.json())["endpoints"]
        assert [(each["address"], each["healthy"], each["last_error"]) for each in endpoints] == [
            (ADDRESSES[0], True, None),
            (ADDRESSES[1], False, "it burns"),
        ]
        two.home.unavailable = EngineUnavailable("it burns too")
        async with server.http.get("/readyz") as response:
            assert response.status == 503
            assert "it burns too" in (await response.json())["reason"]
        async with server.http.post("/v1/messages", json={"messages": [user("go")]}) as response:
            assert response.status == 503


async def test_a_server_begins_before_its_engine_and_serves_once_that_is_there(serve, qwen: Renderer, encode) -> None:
    two = Two(Endpoint([Answer([[*encode("Here."), END]])]), Endpoint())
    for endpoint in (two.home, two.other):
        endpoint.unavailable = EngineUnavailable("not there yet")
    async with two.pool() as pool, serve(pool) as server:
        await open_session(server)
        async with server.http.post(MESSAGES, json={"messages": [user("go")]}) as response:
            assert response.status == 503
            assert "not there yet" in await response.text()
        async with server.http.get("/v1/sessions/s/samples") as response:
            assert response.status == 200
        two.home.unavailable = None
        await until(lambda: any(state.healthy for state in pool.endpoints()))
        reply, _ = await ask(server, [user("go")])
    assert reply["content"][0]["text"] == "Here."
