"""Pauses and new weights over two workers, here in one process, each with a pool of its own over the same engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from adapter.config import Config
from adapter.holding import PeerAnswer
from adapter.http.server import Address
from adapter.ownership import Ownership
from adapter.serving import WorkerPlace
from adapter.workers.forwarding import FORWARDED, Forwarding
from adapter.workers.peers import OtherWorkers
from engine.errors import EngineFailed
from engine.pool import Pool, PoolOptions
from engine.weights import Weights
from tests.adapter.http.conftest import encode, qwen
from tests.engine.fake_endpoints import FakeEndpoint, Fleet, Plan
from tests.support.ports import free_ports
from tests.support.server import TestServer, serving
from tests.support.sse import data_objects, read_until
from tests.support.wait import until

__all__ = ["encode", "qwen"]

SECRET = "known to workers only"
ADMIN = {"Authorization": "Bearer an-admin-key-of-tests"}
SIDS = [Ownership(slot, 2).new_name() for slot in (0, 1)]
"""One session for each worker."""
NEW = {"version": 2, "path": "/w/2", "mode": "cut"}


@dataclass
class Workers:
    """Two places for workers in front of one fleet."""

    qwen: Any
    fleet: Fleet
    ports: list[int]

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    @asynccontextmanager
    async def worker(self, slot: int) -> AsyncIterator[TestServer]:
        forwarding = Forwarding(Ownership(slot, 2), self.urls, SECRET)
        peers = OtherWorkers(slot, self.urls, SECRET, "an-admin-key-of-tests")
        address = Address("127.0.0.1", self.ports[slot])
        place = WorkerPlace(forwarding.ownership, self.urls[slot], (address,), forwarding.extend, peers)
        config = Config(served_model_name="m", admin_key="an-admin-key-of-tests")
        options = PoolOptions(check_interval_s=0.01, cut_grace_s=5)
        async with (
            Pool(list(self.fleet.servers), self.fleet.open, options) as pool,
            serving(pool, self.qwen, config, place=place) as server,
        ):
            yield server


@pytest.fixture
def workers(qwen) -> Workers:
    return Workers(qwen, Fleet(1), free_ports(2))


async def post(server: TestServer, route: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    async with server.http.post(route, json=fields, headers=ADMIN) as response:
        return response.status, await response.json()


async def engine_of(server: TestServer) -> dict[str, Any]:
    async with server.http.get("/v1/engine", headers=ADMIN) as response:
        answer: dict[str, Any] = await response.json()
        return answer


async def versions(server: TestServer, sid: str) -> Any:
    async with server.http.get(f"/v1/sessions/{sid}/samples", headers=ADMIN) as response:
        (sample,) = (await response.json())["samples"]
    return sample["metadata"]["turns"][0]["versions"]


def updates(endpoint: FakeEndpoint) -> int:
    return [control["op"] for control in endpoint.controls].count("update_weights")


@pytest.mark.parametrize("asked", [0, 1])
async def test_whoever_is_asked_all_workers_hold_and_the_engine_swaps_once(workers: Workers, asked: int) -> None:
    endpoint = workers.fleet[0]
    endpoint.plans = [Plan(wait_at=3), Plan(wait_at=3)]
    async with workers.worker(0) as first, workers.worker(1) as second:
        servers = (first, second)
        streams = []
        for sid in SIDS:
            await post(first, "/v1/sessions", sid=sid)
            body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "stream": True}
            streams.append(await first.http.post(f"/s/{sid}/v1/chat/completions", json=body, headers=ADMIN))
            await read_until(streams[-1], "data: ")
        await until(lambda: len(endpoint.running) == 2)
        told = await engine_of(servers[asked])
        assert (told["workers"], told["models"][0]["endpoints"][0]["live"]) == (2, 2)
        status, answer = await post(servers[asked], "/v1/engine/weights", **NEW)
        assert (status, answer["endpoints"][0]["error"], updates(endpoint)) == (200, None, 1)
        for stream in streams:
            assert data_objects(b"data: {}\n\n" + (await stream.content.read()).lstrip())[-1] == "[DONE]"
        for sid in SIDS:
            assert await versions(first, sid) == [[0, 3, 1], [3, 8, 2]]
        for server in servers:
            engine = server.state.services.models.default.engine
            assert isinstance(engine, Pool)
            assert (engine.held, engine.weights and engine.weights.version) == (False, 2)
        assert await post(servers[1 - asked], "/v1/engine/weights", **NEW) == (status, answer)


async def test_a_worker_that_starts_joins_the_pause_and_knows_the_weights(workers: Workers) -> None:
    async with workers.worker(0) as first:
        assert (await post(first, "/v1/engine/weights", **NEW))[0] == 200
        assert (await post(first, "/v1/engine/pause", mode="cut"))[0] == 200
        async with workers.worker(1) as second:
            told = await engine_of(second)
            assert (told["paused"], told["paused_workers"], told["models"][0]["path"]) == (True, 2, "/w/2")
            assert (await post(second, "/v1/engine/resume"))[0] == 200
            assert (await engine_of(first))["paused_workers"] == 0


async def test_the_others_go_on_when_the_coordinator_dies(workers: Workers) -> None:
    """What it told them last was a short hold, which nobody renews."""
    async with workers.worker(1) as second:
        coordinator = OtherWorkers(0, workers.urls, SECRET, "an-admin-key-of-tests")
        hold = {"epoch": "one", "deadline_s": 0, "lease_s": 0.05}
        assert await coordinator.tell("hold", hold, 5) == [PeerAnswer(1, 200, {})]
        engine = second.state.services.models.default.engine
        assert isinstance(engine, Pool)
        await until(lambda: not engine.held)
        status, answer = await post(second, "/v1/engine/weights", **NEW)
        assert (status, answer["error"]["message"]) == (503, "worker 0 is being replaced")


@pytest.mark.parametrize(("before", "meanwhile", "paused"), [("resume", "pause", 2), ("pause", "resume", 0)])
async def test_what_nobody_could_tell_a_worker_before_it_listened_it_learns_then(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, before: str, meanwhile: str, paused: int
) -> None:
    told: list[str] = []
    async with workers.worker(0) as first:
        tell = OtherWorkers.tell

        async def slowly(peers: OtherWorkers, operation: str, body: Any, timeout_s: float) -> list[PeerAnswer]:
            answers = await tell(peers, operation, body, timeout_s)
            if peers.slot == 1 and not told:
                told.append(operation)
                assert (await post(first, f"/v1/engine/{meanwhile}"))[0] == 200
                assert (await post(first, "/v1/engine/weights", **NEW))[0] == 200
            return answers

        assert (await post(first, f"/v1/engine/{before}"))[0] == 200
        monkeypatch.setattr(OtherWorkers, "tell", slowly)
        async with workers.worker(1) as second:
            assert (await engine_of(second))["paused_workers"] == paused
            engine = second.state.services.models.default.engine
            assert isinstance(engine, Pool)
            assert engine.weights == Weights(2, "/w/2")
    assert told == ["state"]


@pytest.mark.parametrize("joined", [True, False])
async def test_what_a_coordinator_left_is_the_next_ones(workers: Workers, joined: bool) -> None:
    """A pause whose coordinator died lasts, is asked for again, holds for new weights and ends; though the next one has not
    heard of it, since nobody answered when it began."""
    left = OtherWorkers(0, workers.urls, SECRET, "an-admin-key-of-tests")
    hold = {"epoch": "an older one", "deadline_s": 0, "lease_s": 60}
    async with workers.worker(1) as second:
        if joined:
            await left.tell("hold", hold, 5)
        async with workers.worker(0) as first:
            if not joined:
                await left.tell("hold", hold, 5)
            assert (await post(second, "/v1/engine/weights", **NEW))[0] == 200
            assert (await engine_of(first))["paused_workers"] == (2 if joined else 0)
            await left.tell("hold", hold, 5)
            status, answer = await post(second, "/v1/engine/pause", mode="cut", lease_s=90)
            assert (status, answer["paused"], answer["lease_left_s"] > 60) == (200, True, True)
            assert (await engine_of(first))["paused_workers"] == 2
            assert (await post(second, "/v1/engine/resume"))[0] == 200
            await left.tell("hold", hold, 5)
            assert (await post(second, "/v1/engine/resume"))[0] == 200
            assert (await engine_of(first))["paused_workers"] == 0


async def test_weights_in_force_outlive_all_workers(workers: Workers) -> None:
    """And an engine that was restarted meanwhile: it is given what another one has."""
    workers.fleet = fleet = Fleet(2)
    async with workers.worker(0) as first, workers.worker(1):
        assert (await post(first, "/v1/engine/weights", **NEW))[0] == 200
    fleet[0].restart(weight_version=1)
    async with workers.worker(1) as second, workers.worker(0) as first:
        await until(lambda: (fleet[0].info.weight_version, fleet[0].path) == (2, "/w/2"))
        for server in (first, second):
            engine = server.state.services.models.default.engine
            assert isinstance(engine, Pool)
            assert engine.weights == Weights(2, "/w/2")
        for wanted in (NEW, {"version": 2}):
            status, answer = await post(second, "/v1/engine/weights", **wanted)
            assert (status, answer["path"]) == (200, "/w/2")
        assert (await post(second, "/v1/engine/weights", version=2, path="/w/other"))[0] == 409


async def test_weights_that_no_endpoint_says_where_they_are_keep_the_others_out(workers: Workers) -> None:
    workers.fleet = fleet = Fleet(2)
    fleet[0].info = replace(fleet[0].info, weight_version=2)
    fleet[1].refusal = EngineFailed("update_weights: path is missing")
    async with workers.worker(0) as first, workers.worker(1):
        assert [each["healthy"] for each in (await engine_of(first))["models"][0]["endpoints"]] == [True, False]
        engine = first.state.services.models.default.engine
        assert isinstance(engine, Pool)
        await until(lambda: "path is missing" in str(engine.endpoints()[1].last_error))
        async with first.http.get("/readyz", headers=ADMIN) as response:
            told = await response.text()
        assert (response.status, "version 1, and version 2 is in force, and it did not take them" in told) == (
            200,
            True,
        )


async def test_an_update_that_its_coordinator_left_half_done_is_completed(workers: Workers) -> None:
    """The worker that lived knows the old weights only; the hold was for the update, and ends at once."""
    workers.fleet = fleet = Fleet(2)
    left = OtherWorkers(0, workers.urls, SECRET, "an-admin-key-of-tests")
    hold = {"epoch": "an older one", "deadline_s": 0, "lease_s": 600, "for_update": True}
    async with workers.worker(1) as second:
        await left.tell("hold", hold, 5)
        fleet[0].info, fleet[0].path = replace(fleet[0].info, weight_version=2), "/w/2"
        async with workers.worker(0) as first:
            for server in (first, second):
                engine = server.state.services.models.default.engine
                assert isinstance(engine, Pool)
                assert (engine.held, engine.weights) == (False, Weights(2, "/w/2"))
            await until(lambda: (fleet[1].info.weight_version, fleet[1].path) == (2, "/w/2"))


async def test_a_worker_that_starts_in_an_update_holds_for_it(workers: Workers) -> None:
    workers.fleet[0].update_gate = asyncio.Event()
    async with workers.worker(0) as first:
        update = asyncio.create_task(post(first, "/v1/engine/weights", **NEW))
        await until(lambda: updates(workers.fleet[0]) == 1)
        async with workers.worker(1) as second:
            assert (await engine_of(second))["paused_workers"] == 2
            workers.fleet[0].update_gate.set()
            assert (await update)[0] == 200
            told = await engine_of(second)
            assert (told["paused_workers"], told["models"][0]["path"]) == (0, "/w/2")


async def test_a_worker_that_does_not_answer_is_not_waited_for(workers: Workers) -> None:
    async with workers.worker(0) as first:
        assert (await post(first, "/v1/engine/pause", mode="cut"))[0] == 200
        assert (await post(first, "/v1/engine/weights", **NEW))[0] == 200
        told = await engine_of(first)
        assert (told["workers"], told["paused_workers"]) == (2, 1)
        assert (await post(first, "/v1/engine/resume"))[0] == 200


async def test_what_workers_tell_one_another_takes_their_secret(workers: Workers) -> None:
    async with workers.worker(0) as first:
        for headers in (ADMIN, {**ADMIN, FORWARDED: "a guess"}):
            async with first.http.post("/v1/engine/workers/state", json={}, headers=headers) as response:
                assert response.status == 404
        async with first.http.post("/v1/engine/workers/state", json={}, headers={FORWARDED: SECRET}) as response:
            assert response.status == 401
        headers = {**ADMIN, FORWARDED: SECRET}
        async with first.http.post("/v1/engine/workers/dance", json={}, headers=headers) as response:
            assert response.status == 404


async def test_a_worker_that_cannot_hold_stops_the_pause(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with it: its generations would go on."""
    async with workers.worker(0) as first, workers.worker(1):
        monkeypatch.setattr(OtherWorkers, "tell", _told_by_a_stranger)
        status, answer = await post(first, "/v1/engine/pause", mode="cut")
        assert (status, answer["error"]["message"]) == (503, "worker 1 did not hold: it answered 401; its log says why")
        assert not first.state.engine.state()["paused"]


async def _told_by_a_stranger(self: OtherWorkers, operation: str, body: Any, timeout_s: float) -> list[PeerAnswer]:
    return [PeerAnswer(1, 401, {})]
