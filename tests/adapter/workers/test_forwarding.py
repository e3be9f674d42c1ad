"""Two workers side by side, here in one process: whichever a request reaches, its session's owner answers it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest
from aiohttp import web

from adapter.config import Config
from adapter.http.server import Address
from adapter.ownership import Ownership
from adapter.serving import WorkerPlace
from adapter.workers.forwarding import FORWARDED, Forwarding
from engine.errors import EngineUnavailable
from tests.adapter.http.conftest import encode, qwen
from tests.support.engine import Answer, FakeEngine
from tests.support.ports import free_ports
from tests.support.server import TestServer, serving
from tests.support.wait import until

__all__ = ["encode", "qwen"]

END = 151645
SECRET = "known to workers only"
ADMIN_KEY = "an-admin-key-of-tests"
MINE, THEIRS = Ownership(0, 2).new_name(), Ownership(1, 2).new_name()
"""Of the worker that the tests ask, and of the other one."""


@dataclass
class Pair:
    asked: TestServer
    other: TestServer
    engines: tuple[FakeEngine, FakeEngine]


@asynccontextmanager
async def pair(qwen, *answers: Answer, down: bool = False, **settings: object) -> AsyncIterator[Pair]:
    """Two workers; the second one's engine gives the answers. With ``down`` it does not listen."""
    ports = free_ports(2)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    engines = (FakeEngine(), FakeEngine(list(answers)))

    def place(slot: int) -> WorkerPlace:
        forwarding = Forwarding(Ownership(slot, 2), urls, SECRET)
        return WorkerPlace(forwarding.ownership, urls[slot], (Address("127.0.0.1", ports[slot]),), forwarding.extend)

    config = Config(served_model_name="slime-actor", **settings)  # type: ignore[arg-type]
    async with serving(engines[0], qwen, config, place=place(0)) as asked:
        if down:
            yield Pair(asked, asked, engines)
            return
        async with serving(engines[1], qwen, config, place=place(1)) as other:
            yield Pair(asked, other, engines)


def body(**more):
    return {"messages": [{"role": "user", "content": "a"}], **more}


async def test_open_answers_with_the_owners_own_url(qwen) -> None:
    async with pair(qwen) as two:
        for sid, url in ((MINE, two.asked.url), (THEIRS, two.other.url)):
            async with two.asked.http.post("/v1/sessions", json={"sid": sid}) as response:
                assert response.status == 201
                assert (await response.json())["base_url"] == f"{url}/s/{sid}"
        async with two.asked.http.post("/v1/sessions") as response:
            assert (await response.json())["base_url"].startswith(two.asked.url)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_is_made_and_recorded_by_the_owner(qwen, encode, stream) -> None:
    async with pair(qwen, Answer([encode("hel"), [*encode("lo"), END]])) as two:
        await two.other.http.post("/v1/sessions", json={"sid": THEIRS})
        async with two.asked.http.post(f"/s/{THEIRS}/v1/messages", json=body(stream=stream)) as response:
            text = await response.text()
            assert response.status == 200
            assert response.headers["x-rollserve-turn"] == "1"
        assert ("message_stop" in text) is stream
        assert not two.engines[0].requests
        assert two.asked.state.sessions.live() == []
        assert [session.sid for session in two.other.state.sessions.live()] == [THEIRS]


async def test_a_session_that_a_header_names_is_opened_by_its_owner(qwen, encode) -> None:
    async with pair(qwen, Answer([[*encode("hello"), END]])) as two:
        headers = {"Authorization": f"Bearer {THEIRS}"}
        async with two.asked.http.post("/v1/messages", json=body(), headers=headers) as response:
            assert response.status == 200
        assert [session.sid for session in two.other.state.sessions.live()] == [THEIRS]


async def test_a_stream_comes_through_as_it_is_made(qwen, encode) -> None:
    hold = asyncio.Event()
    answer = Answer([encode("first"), [*encode("second"), END]], hold=hold, hold_before=1)
    async with pair(qwen, answer) as two:
        await two.other.http.post("/v1/sessions", json={"sid": THEIRS})
        async with two.asked.http.post(f"/s/{THEIRS}/v1/messages", json=body(stream=True)) as response:
            seen = b""
            while b"first" not in seen:
                seen += await response.content.readline()
            hold.set()
            assert b"message_stop" in await response.read()


async def test_a_client_that_leaves_cancels_the_turn_at_the_owner(qwen, encode) -> None:
    answer = Answer([encode("first"), [*encode("second"), END]], hold=asyncio.Event(), hold_before=1)
    async with pair(qwen, answer) as two:
        await two.other.http.post("/v1/sessions", json={"sid": THEIRS})
        async with two.asked.http.post(f"/s/{THEIRS}/v1/messages", json=body(stream=True)) as response:
            while b"first" not in await response.content.readline():
                pass
        await until(lambda: two.engines[1].closed == 1)


async def test_a_reply_that_breaks_off_at_the_owner_breaks_off_here(qwen, encode) -> None:
    answer = Answer([encode("first"), encode("second")], error=EngineUnavailable("gone"))
    async with pair(qwen, answer) as two:
        await two.other.http.post("/v1/sessions", json={"sid": THEIRS})
        async with two.asked.http.post(f"/s/{THEIRS}/v1/messages", json=body(stream=True)) as response:
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()


async def test_errors_come_back_as_they_are(qwen) -> None:
    async with pair(qwen) as two:
        async with two.asked.http.post(f"/s/{THEIRS}/v1/messages", json=body()) as response:
            assert response.status == 404
            assert (await response.json())["error"]["type"] == "not_found_error"


async def test_an_owner_that_is_down_is_a_503_in_the_protocols_shape(qwen) -> None:
    async with pair(qwen, down=True) as two:
        async with two.asked.http.post(f"/s/{THEIRS}/v1/messages", json=body()) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
            assert (await response.json())["error"]["type"] == "overloaded_error"


async def test_lists_and_readiness_are_of_all_workers(qwen) -> None:
    async with pair(qwen) as two:
        for sid in (MINE, THEIRS):
            await two.asked.http.post("/v1/sessions", json={"sid": sid})
        async with two.asked.http.get("/v1/sessions") as response:
            assert {session["sid"] for session in (await response.json())["sessions"]} == {MINE, THEIRS}
        async with two.asked.http.get("/readyz") as response:
            assert ((await response.json())["workers"], response.status) == (2, 200)
        two.engines[1].unavailable = EngineUnavailable("gone")
        async with two.asked.http.get("/readyz") as response:
            answer = await response.json()
            assert (response.status, answer["ready"], answer["reason"]) == (503, 1, "gone")


async def test_readiness_tells_of_a_worker_that_is_down(qwen) -> None:
    async with pair(qwen, down=True) as two:
        async with two.asked.http.get("/readyz") as response:
            assert (response.status, (await response.json())["reason"]) == (503, "worker 1 does not answer")


async def test_a_request_is_passed_on_once(qwen) -> None:
    async with pair(qwen) as two:
        headers = {FORWARDED: SECRET}
        async with two.asked.http.post(f"/s/{THEIRS}/v1/messages", json=body(), headers=headers) as response:
            assert response.status == 503
            assert "disagree" in (await response.json())["error"]["message"]


async def test_a_client_cannot_pass_for_a_worker(qwen) -> None:
    async with pair(qwen) as two:
        await two.other.http.post("/v1/sessions", json={"sid": THEIRS})
        async with two.asked.http.get("/v1/sessions", headers={FORWARDED: "1"}) as response:
            assert [session["sid"] for session in (await response.json())["sessions"]] == [THEIRS]


async def test_what_a_client_wrote_in_its_place_is_not_passed_on(qwen, encode, monkeypatch) -> None:
    seen, judge = [], Forwarding._is_of_a_peer

    def look(self: Forwarding, request: web.Request) -> bool:
        seen.append(request.headers.getall(FORWARDED))
        return judge(self, request)

    async with pair(qwen, Answer([[*encode("hello"), END]])) as two:
        await two.other.http.post("/v1/sessions", json={"sid": THEIRS})
        headers = {FORWARDED.title(): "1"}
        monkeypatch.setattr(Forwarding, "_is_of_a_peer", look)
        async with two.asked.http.post(f"/s/{THEIRS}/v1/messages", json=body(), headers=headers) as response:
            assert response.status == 200
        assert seen == [["1"], [SECRET]]


async def test_the_owner_judges_access_keys(qwen, encode) -> None:
    async with pair(qwen, Answer([[*encode("hello"), END]]), admin_key=ADMIN_KEY) as two:
        admin = {"x-goog-api-key": ADMIN_KEY}
        async with two.other.http.post("/v1/sessions", json={"sid": THEIRS}, headers=admin) as response:
            key = (await response.json())["session_key"]
        async with two.asked.http.post("/v1/sessions", json={"sid": MINE}, headers=admin) as response:
            mine = (await response.json())["session_key"]
        for headers, status in (({"x-api-key": key}, 200), ({"x-api-key": f"{key[:-40]}{THEIRS}"}, 401), ({}, 401)):
            async with two.asked.http.post("/v1/messages", json=body(), headers=headers) as response:
                assert response.status == status, headers
        for headers in ({"x-api-key": mine}, {"x-api-key": mine, FORWARDED: "1"}):
            async with two.asked.http.post(f"/s/{THEIRS}/v1/messages", json=body(), headers=headers) as response:
                assert response.status == 404
        async with two.asked.http.get("/v1/sessions", headers=admin) as response:
            assert {session["sid"] for session in (await response.json())["sessions"]} == {MINE, THEIRS}
        async with two.asked.http.get("/v1/sessions", headers={"x-api-key": key}) as response:
            assert response.status == 403
        async with two.asked.http.get("/readyz") as response:
            assert await response.json() == {"status": "ready", "workers": 2, "ready": 2}
