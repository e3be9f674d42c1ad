"""Pause, new weights, resume: streams go on, new turns wait without failing, and what cannot be done is said by name."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from adapter.admission import Admission
from adapter.config import Config
from adapter.errors import Conflict, TooManyRequests
from adapter.pausing import Hold, Pause
from adapter.storage.frames import FrameKind
from adapter.storage.recovery import read
from engine.errors import EngineFailed
from engine.pool import Pool, PoolOptions
from tests.engine.fake_endpoints import FakeEndpoint, Fleet, Plan, Reading, greedy, request
from tests.support.server import TestServer, serving
from tests.support.sse import data_objects, read_until
from tests.support.wait import until

ADMIN = "an-admin-key-of-tests"
CHAT = "/s/s/v1/chat/completions"
REFUSED = EngineFailed("update_weights: /w/2 holds no *.safetensors file")
NEW = {"version": 2, "path": "/w/2", "mode": "cut"}


@asynccontextmanager
async def engine(qwen: Any, servers: int = 1, **settings: Any) -> AsyncIterator[tuple[TestServer, Fleet]]:
    """The adapter before endpoints in memory, in real time; they are checked every few milliseconds."""
    fleet = Fleet(servers)
    options = PoolOptions(check_interval_s=0.01, cut_grace_s=5)
    async with Pool(list(fleet.servers), fleet.open, options) as pool:
        async with serving(pool, qwen, Config(served_model_name="m", **settings)) as server:
            async with server.http.post("/v1/sessions", json={"sid": "s"}, headers=key()) as response:
                assert response.status == 201, await response.text()
            yield server, fleet


def key() -> dict[str, str]:
    return {"Authorization": f"Bearer {ADMIN}"}


def body(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "stream": True, **more}


async def post(server: TestServer, what: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    async with server.http.post(f"/v1/engine/{what}", json=fields, headers=key()) as response:
        return response.status, await response.json()


async def state(server: TestServer) -> dict[str, Any]:
    async with server.http.get("/v1/engine", headers=key()) as response:
        assert response.status == 200
        answer: dict[str, Any] = await response.json()
        return answer


def endpoint_of(told: dict[str, Any]) -> dict[str, Any]:
    endpoint: dict[str, Any] = told["models"][0]["endpoints"][0]
    return endpoint


async def samples(server: TestServer) -> Any:
    async with server.http.get("/v1/sessions/s/samples") as response:
        return (await response.json())["samples"]


def frames(folder: Path) -> Counter[int]:
    """How many of each kind a journal has."""
    return read(next(folder.rglob("*.journal")).parent, 0).kinds


async def stopped_at(response: aiohttp.ClientResponse, endpoint: FakeEndpoint) -> None:
    """The stream has begun, and the engine waits at its plan's token."""
    await read_until(response, "data: ")
    await until(lambda: endpoint.running)


async def test_a_stream_goes_on_under_the_new_weights(qwen, tmp_path: Path) -> None:
    async with engine(qwen, journal=tmp_path) as (server, fleet):
        fleet[0].plans = [Plan(wait_at=3)]
        async with server.http.post(CHAT, json=body()) as response:
            await stopped_at(response, fleet[0])
            status, answer = await post(server, "weights", **NEW)
            assert (status, answer["version"], answer["path"]) == (200, 2, "/w/2")
            assert answer["endpoints"] == [{"address": fleet[0].address, "weight_version": 2, "error": None}]
            assert (await response.content.read()).endswith(b"data: [DONE]\n\n")
        (sample,) = await samples(server)
        assert sample["metadata"]["turns"][0]["versions"] == [[0, 3, 1], [3, 8, 2]]
        assert sample["weight_versions"] == ["1", "2"]
        prompt = fleet[0].requests[0].prompt_ids
        assert sample["tokens"][-8:] == greedy(prompt, 8)
        told = await state(server)
        assert (told["paused"], told["updating"], told["models"][0]["path"]) == (False, None, "/w/2")
        assert (told["models"][0]["weight_version"], endpoint_of(told)["live"]) == (2, 0)
    assert frames(tmp_path)[FrameKind.WEIGHTS] == 1


async def test_new_turns_wait_with_heartbeats_until_resume(qwen) -> None:
    async with engine(qwen, keepalive_s=0.02) as (server, fleet):
        status, told = await post(server, "pause", mode="cut")
        assert (status, told["paused"]) == (200, True)
        assert 0 < told["lease_left_s"] <= 300
        async with server.http.post(CHAT, json=body()) as response:
            assert response.status == 200
            await read_until(response, ":")
            assert not fleet[0].requests
            assert (await state(server))["paused"] is True
            async with server.http.get("/readyz") as ready:
                assert ready.status == 200
            assert (await post(server, "resume"))[1]["paused"] is False
            assert data_objects(await response.content.read())[-1] == "[DONE]"
        assert len(fleet[0].requests) == 1


async def test_a_pause_lets_what_runs_end_until_the_deadline(qwen) -> None:
    async with engine(qwen) as (server, fleet):
        plan = Plan(wait_at=3)
        fleet[0].plans = [plan]
        async with server.http.post(CHAT, json=body()) as response:
            await stopped_at(response, fleet[0])
            pausing = asyncio.create_task(post(server, "pause", mode="drain", deadline_s=100))
            await until(lambda: server.state.services.admission.held)
            plan.gate.set()
            assert (await pausing)[1]["paused"] is True
            assert data_objects(await response.content.read())[-1] == "[DONE]"
        assert len(fleet[0].requests) == 1
        await post(server, "resume")


async def test_weights_may_be_given_during_a_pause_which_lasts(qwen) -> None:
    async with engine(qwen) as (server, _):
        await post(server, "pause", mode="cut", lease_s=100)
        assert (await post(server, "weights", **NEW))[0] == 200
        told = await state(server)
        assert (told["paused"], endpoint_of(told)["weight_version"]) == (True, 2)
        assert 15 < told["lease_left_s"] <= 100
        await post(server, "resume")
        assert (await state(server))["paused"] is False
        assert (await post(server, "resume"))[0] == 200


async def test_the_same_version_again_has_the_same_answer(qwen) -> None:
    async with engine(qwen) as (server, fleet):
        first = await post(server, "weights", **NEW)
        assert await post(server, "weights", **{**NEW, "mode": "drain", "deadline_s": 9}) == first
        assert [control["op"] for control in fleet[0].controls].count("update_weights") == 1
        status, answer = await post(server, "weights", version=2, path="/w/other")
        assert (status, answer["error"]["field"]) == (409, "path")
        status, answer = await post(server, "weights", version=1, path="/w/1")
        assert (status, answer["error"]["field"]) == (400, "version")
        assert answer["error"]["message"] == "version 2 is in force, and versions only rise"


async def test_one_update_at_a_time_which_its_client_may_leave(qwen) -> None:
    async with engine(qwen) as (server, fleet):
        fleet[0].update_gate = asyncio.Event()
        leaving = asyncio.create_task(post(server, "weights", **NEW))
        await until(lambda: fleet[0].controls[-1:] == [{"op": "update_weights", "version": 2, "path": "/w/2"}])
        assert (await state(server))["updating"] == {"model": "m", "version": 2, "path": "/w/2"}
        for what, fields in (("weights", {"version": 3, "path": "/w/3"}), ("resume", {}), ("pause", {})):
            status, answer = await post(server, what, **fields)
            assert (status, answer["error"]["type"]) == (409, "conflict")
            assert "an update to version 2 is running" in answer["error"]["message"]
        leaving.cancel()
        joined = asyncio.create_task(post(server, "weights", **NEW))
        await asyncio.sleep(0)
        fleet[0].update_gate.set()
        assert (await joined)[0] == 200
        assert [control["op"] for control in fleet[0].controls].count("update_weights") == 1
        assert (await state(server))["paused"] is False


async def test_an_endpoint_that_fails_is_out_of_service_and_the_answer_says_so(qwen) -> None:
    async with engine(qwen, servers=2) as (server, fleet):
        fleet[0].refusal = REFUSED
        status, answer = await post(server, "weights", **NEW)
        outcomes = {each["address"]: (each["weight_version"], each["error"]) for each in answer["endpoints"]}
        assert (status, outcomes) == (200, {fleet[0].address: (1, str(REFUSED)), fleet[1].address: (2, None)})
        assert [each["healthy"] for each in (await state(server))["models"][0]["endpoints"]] == [False, True]
        fleet[0].refusal = None
        await until(lambda: fleet[0].info.weight_version == 2)


async def test_where_no_endpoint_takes_them_the_old_ones_go_on(qwen) -> None:
    async with engine(qwen) as (server, fleet):
        fleet[0].refusal = REFUSED
        status, answer = await post(server, "weights", **NEW)
        assert (status, answer["error"]["type"]) == (502, "update_refused")
        assert answer["endpoints"] == [{"address": fleet[0].address, "weight_version": 1, "error": str(REFUSED)}]
        told = await state(server)
        assert (told["paused"], told["models"][0]["weight_version"], endpoint_of(told)["healthy"]) == (False, 1, True)
        async with server.http.post(CHAT, json=body(stream=False)) as response:
            assert response.status == 200
        fleet[0].refusal = None
        assert (await post(server, "weights", **NEW))[0] == 200


@pytest.mark.parametrize(
    ("what", "fields", "field"),
    [
        ("pause", {"mode": "stop"}, "mode"),
        ("pause", {"deadline_s": -1}, "deadline_s"),
        ("pause", {"deadline_s": True}, "deadline_s"),
        ("pause", {"deadline_s": "30"}, "deadline_s"),
        ("pause", {"mode": "cut", "deadline_s": 3}, "deadline_s"),
        ("pause", {"lease_s": 0}, "lease_s"),
        ("pause", {"deadline_s": 30, "lease_s": 30}, "lease_s"),
        ("pause", {"lease": 30}, "lease"),
        ("resume", {"mode": "cut"}, "mode"),
        ("weights", {"path": "/w"}, "version"),
        ("weights", {"version": -1}, "version"),
        ("weights", {"version": 2**31}, "version"),
        ("weights", {"version": True}, "version"),
        ("weights", {"version": 2, "path": 3}, "path"),
        ("weights", {"version": 2, "path": ""}, "path"),
        ("weights", {"version": 2, "mode": 1}, "mode"),
        ("weights", {"version": 2, "lease_s": 1}, "lease_s"),
    ],
)
async def test_a_wrong_field_is_named(qwen, what, fields, field) -> None:
    async with engine(qwen) as (server, fleet):
        status, answer = await post(server, what, **fields)
        assert (status, answer["error"]["field"]) == (400, field)
        assert (await state(server))["paused"] is False
        assert not [control for control in fleet[0].controls if control["op"] == "update_weights"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
@pytest.mark.parametrize("field", ["deadline_s", "lease_s"])
async def test_what_is_not_finite_is_refused(qwen, field: str, number: str) -> None:
    """JSON has no such number."""
    async with engine(qwen) as (server, _):
        text = f'{{"{field}": {number}}}'
        headers = {"content-type": "application/json"}
        async with server.http.post("/v1/engine/pause", data=text, headers=headers) as response:
            assert (response.status, "JSON" in await response.text()) == (400, True)


async def test_another_model_is_not_found(qwen) -> None:
    async with engine(qwen) as (server, _):
        status, answer = await post(server, "weights", version=2, model="other")
        assert (status, answer["error"]["field"]) == (404, "model")
        assert answer["error"]["message"].endswith("there are: m")


async def test_it_takes_the_admin_key(qwen) -> None:
    async with engine(qwen, admin_key=ADMIN) as (server, _):
        async with server.http.post("/v1/sessions", json={"sid": "keyed"}, headers=key()) as response:
            session_key = (await response.json())["session_key"]
        for headers, status in (({}, 401), ({"x-api-key": session_key}, 403)):
            for method, path in (("GET", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/weights")):
                async with server.http.request(method, f"/v1/engine{path}", json={}, headers=headers) as response:
                    assert response.status == status
        assert (await post(server, "pause"))[0] == 200
        assert (await post(server, "resume"))[0] == 200


async def test_what_workers_tell_one_another_is_not_for_others(qwen) -> None:
    async with engine(qwen) as (server, _):
        for operation in ("hold", "release", "adopt", "state"):
            status, answer = await post(server, f"workers/{operation}")
            assert (status, answer["error"]["type"]) == (404, "not_found")


async def test_a_pause_ends_by_itself_when_nobody_renews_it() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        pause = Pause([pool], Admission(None, 1, 1))
        await pause.hold(Hold("one", 0, 0.01))
        assert pool.held
        await until(lambda: not pool.held)
        assert (pause.epoch, pause.lease_left_s) == (None, 0.0)


async def test_a_pause_is_renewed_and_ended_in_its_own_name_only() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        pause = Pause([pool], Admission(None, 1, 1))
        await pause.hold(Hold("one", 0, 50))
        assert not pause.renew("two", 100)
        assert not pause.release("two")
        assert pause.lease_left_s <= 50
        assert pause.renew("one", 100)
        assert pause.lease_left_s > 50
        assert pause.release("one")
        assert not pool.held


async def test_a_hold_takes_the_place_of_one_whose_holder_is_no_more() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        pause = Pause([pool], Admission(None, 1, 1))
        assert not pause.release(None)
        await pause.hold(Hold("one", 0, 50))
        await pause.hold(Hold("two", 0, 100))
        assert not pause.release("one")
        assert pool.held
        assert pause.lease_left_s > 50
        assert pause.release(None)
        assert not pool.held


async def test_a_pause_that_ends_while_it_drains_says_so() -> None:
    fleet = Fleet(1)
    fleet[0].plans = [Plan(wait_at=1)]
    async with fleet.pool() as pool:
        reading = Reading(pool, request())
        await reading.until(lambda: reading.ids)
        pause = Pause([pool], Admission(None, 1, 1))
        holding = asyncio.create_task(pause.hold(Hold("one", 1000, 50)))
        await until(lambda: pool.held)
        pause.release("one")
        with pytest.raises(Conflict, match="ended before"):
            await holding
        await reading.cancelled()


async def test_the_queue_does_not_count_the_time_of_a_pause() -> None:
    admission = Admission(1, 5, 0.01)
    admission.held = True
    async with admission.places():
        waiting = asyncio.create_task(admission.places().__aenter__())
        await asyncio.wait([waiting], timeout=0.1)
        assert not waiting.done()
        admission.held = False
        with pytest.raises(TooManyRequests):
            await waiting
    assert (admission.running, admission.queued) == (0, 0)
