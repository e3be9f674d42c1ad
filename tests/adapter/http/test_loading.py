"""Sessions that are in the journal only come into memory beside the event loop: once, and never as they were before."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from adapter.loading import Loading, Made
from tests.support.engine import Answer, FakeEngine
from tests.support.server import TestServer
from tests.support.wait import until

END = 151645
HELLO = [{"role": "user", "content": "hi"}]


class Gate:
    """Reads in threads wait here; ``begun`` counts them. Reads on the event loop pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.begun = 0
        read = Loading.read

        def waiting(loading: Loading, sid: str) -> Made:
            made = read(loading, sid)
            if threading.current_thread() is not threading.main_thread():
                self.begun += 1
                assert self.opened.wait(30)
            return made

        monkeypatch.setattr(Loading, "read", waiting)


async def ask(server: TestServer, messages: list[dict[str, Any]]) -> tuple[int, str, str]:
    """The status, how the history was recognised, the turn's number."""
    async with server.http.post("/s/a/v1/messages", json={"messages": messages}) as response:
        await response.read()
        return response.status, response.headers["x-rollserve-match"], response.headers["x-rollserve-turn"]


async def opened(server: TestServer) -> list[dict[str, Any]]:
    """A session ``a`` with one turn, spilled; gives its history."""
    async with server.http.post("/v1/sessions", json={"sid": "a"}) as response:
        assert response.status == 201
    async with server.http.post("/s/a/v1/messages", json={"messages": HELLO}) as response:
        said = await response.json()
    spill(server)
    return [*HELLO, {"role": "assistant", "content": said["content"]}, {"role": "user", "content": "more"}]


def spill(server: TestServer) -> None:
    sessions = server.state.sessions
    assert sessions.spill(sessions.find("a"))


async def test_it_is_read_once_for_all_who_wait_and_others_go_on(serve, encode, tmp_path, monkeypatch) -> None:
    engine = FakeEngine([Answer([[*encode(text), END]]) for text in "abc"])
    async with serve(engine, journal=tmp_path) as server:
        history = await opened(server)
        gate = Gate(monkeypatch)
        asked = [asyncio.create_task(ask(server, history)) for _ in range(2)]
        await until(lambda: gate.begun == 1)
        async with server.http.get("/healthz") as response:
            assert response.status == 200
        assert len(engine.requests) == 1
        gate.opened.set()
        answers = sorted([await each for each in asked])
    assert [answer[:2] for answer in answers] == [(200, "exact")] * 2
    assert gate.begun == 1


async def test_what_was_read_before_another_turn_is_not_taken(serve, encode, tmp_path, monkeypatch) -> None:
    engine = FakeEngine([Answer([[*encode(text), END]]) for text in "abc"])
    async with serve(engine, journal=tmp_path) as server:
        history = await opened(server)
        gate = Gate(monkeypatch)
        late = asyncio.create_task(ask(server, history))
        await until(lambda: gate.begun == 1)
        # Somebody who did not wait has it, goes on with it, and it is stored again.
        server.state.sessions.find("a")
        assert (await ask(server, [*HELLO, {"role": "user", "content": "another"}]))[0] == 200
        spill(server)
        gate.opened.set()
        assert await late == (200, "exact", "3")
        async with server.http.get("/v1/sessions/a") as response:
            assert (await response.json())["turn_count"] == 3
