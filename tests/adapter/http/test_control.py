"""The trainer's side over HTTP."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

import pytest
from yarl import URL

from tests.support.engine import Answer, FakeEngine
from tests.support.wait import until

HELLO = [{"role": "user", "content": "hi"}]


async def open_session(server, **body):
    async with server.http.post("/v1/sessions", json=body) as response:
        return response.status, await response.json()


async def get(server, path):
    async with server.http.get(path) as response:
        return response.status, await response.json()


async def finish(server, sid, **body):
    async with server.http.post(f"/v1/sessions/{sid}/finish", json=body) as response:
        return response.status, await response.json()


async def turn(server, sid):
    async with server.http.post(f"/s/{sid}/v1/messages", json={"messages": HELLO}) as response:
        return response.status, await response.json()


async def test_open_look_turn_finish(serve, encode) -> None:
    ids = [*encode("hello"), 151645]
    async with serve(FakeEngine([Answer([ids])])) as server:
        status, opened = await open_session(server, sid="a", metadata={"task": 1})
        assert (status, opened["sid"]) == (201, "a")
        assert opened["base_url"] == f"{server.url}/s/a"
        _, before = await get(server, "/v1/sessions/a")
        assert (before["has_session"], before["turn_count"], before["paths"]) == (False, 0, [])
        assert (await turn(server, "a"))[0] == 200
        _, view = await get(server, "/v1/sessions/a")
        assert (view["has_session"], view["turn_count"], view["in_flight"]) == (True, 1, 0)
        assert [node["role"] for node in view["paths"][0]] == ["user", "assistant"]
        assert [node["turn_index"] for node in view["paths"][0]] == [None, 1]
        _, listed = await get(server, "/v1/sessions")
        assert [session["sid"] for session in listed["sessions"]] == ["a"]
        status, answer = await finish(
            server, "a", reward=0.5, metadata={"more": 2}, index=3, group_index=4, label="l", prompt="p"
        )
        assert status == 200
        (sample,) = answer["samples"]
        assert answer["ledger"] == {"sampled": len(ids), "trained": len(ids), "dropped": {}}
        assert (sample["reward"], sample["index"], sample["group_index"], sample["label"]) == (0.5, 3, 4, "l")
        assert (sample["prompt"], sample["rollout_id"], sample["status"]) == ("p", 3, "completed")
        assert sample["metadata"]["task"] == 1
        assert sample["metadata"]["more"] == 2
        assert sample["metadata"]["turns"][0]["versions"] == [[0, len(ids), 3]]


async def test_finish_again_is_the_same_and_a_different_one_is_409(serve, encode) -> None:
    async with serve(FakeEngine([Answer([encode("hello")])])) as server:
        await open_session(server, sid="a")
        await turn(server, "a")
        first = await finish(server, "a", reward=1.0)
        assert await finish(server, "a", reward=1.0) == first
        assert (await finish(server, "a", reward=2.0))[0] == 409
        assert (await turn(server, "a"))[0] == 410
        assert (await get(server, "/v1/sessions/a"))[0] == 410
        assert (await open_session(server, sid="a"))[0] == 409


async def test_finish_cancels_turns_that_outlast_the_grace_time(serve, encode) -> None:
    engine = FakeEngine([Answer([encode("never")], hold=asyncio.Event())])
    async with serve(engine, finish_grace_s=0.01) as server:
        await open_session(server, sid="a")
        running = asyncio.create_task(turn(server, "a"))
        await until(lambda: engine.requests)
        status, answer = await finish(server, "a")
        assert (status, answer["samples"]) == (200, [])
        await until(lambda: engine.closed == 1)
        assert (await asyncio.gather(running, return_exceptions=True))[0] is not None


async def test_finish_waits_for_turns_in_flight(serve, encode) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([Answer([encode("done")], hold=hold)])
    async with serve(engine) as server:
        await open_session(server, sid="a")
        running = asyncio.create_task(turn(server, "a"))
        await until(lambda: engine.requests)
        finishing = asyncio.create_task(finish(server, "a"))
        await until(lambda: server.state.sessions.find("a").state == "finishing")
        assert (await turn(server, "a"))[0] == 410
        hold.set()
        assert (await running)[0] == 200
        assert len((await finishing)[1]["samples"]) == 1


async def test_drop_forgets(serve, encode) -> None:
    async with serve(FakeEngine([Answer([encode("x")])])) as server:
        await open_session(server, sid="a")
        await turn(server, "a")
        async with server.http.delete("/v1/sessions/a") as response:
            assert response.status == 204
        assert (await get(server, "/v1/sessions/a"))[0] == 404
        async with server.http.delete("/v1/sessions/a") as response:
            assert response.status == 404


async def test_session_limits(serve, encode) -> None:
    engine = FakeEngine([Answer([encode("x")])])
    async with serve(engine) as server:
        await open_session(server, sid="a", max_turns=1, max_context_tokens=60)
        assert (await turn(server, "a"))[0] == 200
        assert engine.requests[0].prompt_ids.size + engine.requests[0].max_tokens == 60
        assert (await turn(server, "a"))[0] == 429


async def test_an_unknown_session_in_the_path_is_404_and_not_built(serve) -> None:
    async with serve(FakeEngine()) as server:
        status, body = await turn(server, "nobody")
        assert status == 404
        assert body["type"] == "error"
        assert "nobody" in body["error"]["message"]
        assert (await get(server, "/v1/sessions"))[1]["sessions"] == []


async def test_explicit_sessions(serve, encode) -> None:
    async with serve(FakeEngine([Answer([encode("x")])]), explicit_sessions=True) as server:
        headers = {"Authorization": "Bearer mine"}
        async with server.http.post("/v1/messages", json={"messages": HELLO}, headers=headers) as response:
            assert response.status == 404
        await open_session(server, sid="mine")
        async with server.http.post("/v1/messages", json={"messages": HELLO}, headers=headers) as response:
            assert response.status == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"sid": 3}, "sid"),
        ({"sid": "a/b"}, "sid"),
        ({"sid": ""}, "sid"),
        ({"surprise": 1}, "surprise"),
        ({"sampling": []}, "sampling"),
        ({"sampling": {"deflaut": {}}}, "sampling.deflaut"),
        ({"sampling": {"default": {"temperature": "hot"}}}, "sampling.default.temperature"),
        ({"sampling": {"pinned": {"top_p": 0}}}, "sampling.pinned.top_p"),
        ({"sampling": {"pinned": {"seed": -1}}}, "sampling.pinned.seed"),
        ({"sampling": {"pinned": {"tempreature": 1}}}, "sampling.pinned.tempreature"),
        ({"max_turns": 0}, "max_turns"),
        ({"max_context_tokens": True}, "max_context_tokens"),
        ({"metadata": []}, "metadata"),
        ({"metadata": 5}, "metadata"),
    ],
)
async def test_bad_open_names_the_field(serve, body, field) -> None:
    async with serve(FakeEngine()) as server:
        status, answer = await open_session(server, **body)
        assert (status, answer["error"]["field"]) == (400, field)
        assert (await get(server, "/v1/sessions"))[1]["sessions"] == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"reward": "good"}, "reward"),
        ({"rewards": 1}, "rewards"),
        ({"metadata": 1}, "metadata"),
        ({"index": -1}, "index"),
    ],
)
async def test_bad_finish_names_the_field_and_keeps_the_session(serve, encode, body, field) -> None:
    async with serve(FakeEngine([Answer([encode("x")])])) as server:
        await open_session(server, sid="a")
        await turn(server, "a")
        status, answer = await finish(server, "a", **body)
        assert (status, answer["error"]["field"]) == (400, field)
        assert len((await finish(server, "a"))[1]["samples"]) == 1


async def test_health_and_readiness(serve) -> None:
    from engine.errors import EngineUnavailable

    engine = FakeEngine()
    async with serve(engine) as server:
        assert (await get(server, "/healthz"))[0] == 200
        assert (await get(server, "/readyz"))[0] == 200
        engine.unavailable = EngineUnavailable("no connection to 127.0.0.1:1")
        status, body = await get(server, "/readyz")
        assert (status, body["reason"]) == (503, "no connection to 127.0.0.1:1")
        assert (await get(server, "/healthz"))[0] == 200


async def test_finish_takes_rewards_by_turn_and_filters(serve, encode) -> None:
    async with serve(FakeEngine([Answer([encode("one")]), Answer([encode("two")])])) as server:
        await open_session(server, sid="a")
        await turn(server, "a")
        await turn(server, "a")
        status, answer = await finish(server, "a", turn_rewards={"1": 0.25, "2": 0.75})
        assert status == 200
        assert [sample["reward"] for sample in answer["samples"]] == [0.25, 0.75]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"turn_rewards": {"9": 1}}, "turn_rewards.9"),
        ({"leaf_rewards": {"x": 1}}, "leaf_rewards"),
        ({"filters": {"surprise": 1}}, "filters.surprise"),
        ({"filters": {"max_staleness": -1}}, "filters.max_staleness"),
    ],
)
async def test_bad_rewards_and_filters_leave_the_session_open(serve, encode, body, field) -> None:
    async with serve(FakeEngine([Answer([encode("one")])])) as server:
        await open_session(server, sid="a")
        await turn(server, "a")
        status, answer = await finish(server, "a", **body)
        assert status == 400
        assert answer["error"]["field"].startswith(field)
        assert len((await finish(server, "a"))[1]["samples"]) == 1


async def test_the_same_finish_joins_one_that_runs(serve, encode) -> None:
    hold = asyncio.Event()
    engine = FakeEngine([Answer([encode("done")], hold=hold)])
    async with serve(engine) as server:
        await open_session(server, sid="a")
        running = asyncio.create_task(turn(server, "a"))
        await until(lambda: engine.requests)
        finishing = [asyncio.create_task(finish(server, "a", reward=1.0)) for _ in range(2)]
        await until(lambda: server.state.sessions.find("a").state == "finishing")
        assert (await finish(server, "a", reward=2.0))[0] == 409
        hold.set()
        assert (await running)[0] == 200
        first, second = await asyncio.gather(*finishing)
        assert first == second
        assert first[0] == 200


@pytest.mark.parametrize("sid", [".", ".."])
async def test_names_that_urls_swallow_are_refused(serve, sid) -> None:
    async with serve(FakeEngine()) as server:
        status, answer = await open_session(server, sid=sid)
        assert (status, answer["error"]["field"]) == (400, "sid")


async def test_staleness_is_measured_against_the_engines_weights(serve, encode) -> None:
    """The fake engine's tokens and its weights are of version 3."""
    async with serve(FakeEngine([Answer([encode("one")])])) as server:
        await open_session(server, sid="a")
        await turn(server, "a")
        status, answer = await finish(server, "a", filters={"max_staleness": 0})
        assert (status, len(answer["samples"])) == (200, 1)


@pytest.mark.parametrize("name", ["{a}", "a/b", "a b", "%2F", "%7Ba", "a?b#c", "ü"])
async def test_a_session_of_any_name_is_found_by_its_url(serve, encode, name) -> None:
    async with serve(FakeEngine([Answer([encode("fine")])])) as server:
        body = {
            "messages": [{"role": "user", "content": "hi"}],
            "metadata": {"user_id": json.dumps({"session_id": name})},
        }
        async with server.http.post("/v1/messages", json=body) as response:
            assert response.status == 200
        assert [session.sid for session in server.state.sessions.live()] == [name]
        url = URL(f"{server.url}/v1/sessions/{quote(name, safe='')}", encoded=True)
        async with server.http.get(url) as response:
            assert (response.status, (await response.json())["sid"]) == (200, name)
        async with server.http.delete(url) as response:
            assert response.status == 204
