"""Processes that are killed at one point each; then the machine loses its power too. What a client saw complete is there again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.adapter.http.test_keep import END, user
from tests.adapter.http.test_prefill import said
from tests.support.dying_server import POINTS
from tests.support.engine import Answer, FakeEngine
from tests.support.power import lose_page_cache
from tests.support.processes import assert_gone

TURN_POINTS = [point for point in POINTS if "of a turn" in point]
FINISH_POINTS = [point for point in POINTS if "of a finish" in point]
SEGMENT_POINTS = [point for point in POINTS if "segment" in point]
COMPACTION_POINTS = [point for point in POINTS if "compaction" in point]
SMALL = {"journal_segment_bytes": 4096}


@dataclass
class Conversation:
    """What a client knows of one session. ``cut``: the reply to its last request did not come to its end."""

    replies: list[str] = field(default_factory=list)
    cut: bool = False
    finish: Any = None
    dropped: bool = False

    def messages(self) -> list[dict[str, Any]]:
        history = [user("turn 1")]
        for number, text in enumerate(self.replies, start=2):
            history += [said(text), user(f"turn {number}")]
        return history


@dataclass
class Client:
    """Talks until the server is gone."""

    url: str
    sessions: dict[str, Conversation] = field(default_factory=dict)

    async def until_gone(self, talk: Callable[[aiohttp.ClientSession], Any]) -> None:
        async with aiohttp.ClientSession(self.url) as http:
            try:
                await talk(http)
            except aiohttp.ClientError:
                return
        raise AssertionError("the server lives")

    async def open(self, http: aiohttp.ClientSession, sid: str) -> Conversation:
        async with http.post("/v1/sessions", json={"sid": sid}) as response:
            assert response.status == 201
        self.sessions[sid] = Conversation()
        return self.sessions[sid]

    async def ask(self, http: aiohttp.ClientSession, sid: str) -> None:
        known = self.sessions[sid]
        known.cut, text = True, b""
        body = {"messages": known.messages(), "stream": True, "model": "slime-actor"}
        async with http.post(f"/s/{sid}/v1/messages", json=body) as response:
            assert response.status == 200
            async for line in response.content:
                text += line
        assert b"message_stop" in text
        known.cut = False
        known.replies.append(_text(text))

    async def finish(self, http: aiohttp.ClientSession, sid: str) -> None:
        async with http.post(f"/v1/sessions/{sid}/finish", json={"reward": 1.0}) as response:
            self.sessions[sid].finish = await response.json()

    async def drop(self, http: aiohttp.ClientSession, sid: str) -> None:
        async with http.delete(f"/v1/sessions/{sid}"):
            self.sessions[sid].dropped = True


def _text(stream: bytes) -> str:
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: ")]
    return "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")


@pytest.fixture(scope="module")
def nursery() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.dying_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0


@dataclass
class Crash:
    """Start a server, and see it end."""

    nursery: subprocess.Popen[str]
    journal: Path

    async def start(self, point: str | None, **settings: Any) -> tuple[int, Client]:
        assert self.nursery.stdin is not None and self.nursery.stdout is not None
        order = {"journal": str(self.journal), "point": point, "settings": settings}
        self.nursery.stdin.write(json.dumps(order) + "\n")
        self.nursery.stdin.flush()
        told = json.loads(await asyncio.to_thread(self.nursery.stdout.readline))
        return told["pid"], Client(told["url"])

    def end(self, pid: int, *, kill: bool = False, power: bool = True) -> None:
        if kill:
            os.kill(pid, signal.SIGKILL)
        assert_gone([pid])
        if power:
            lose_page_cache(self.journal / "000001")


@pytest.fixture
def crash(nursery: subprocess.Popen[str], tmp_path: Path) -> Crash:
    return Crash(nursery, tmp_path)


@pytest.fixture
def again(serve, encode, tmp_path: Path) -> Callable[..., Any]:
    """The same journal, another server; its engine says ``new``."""
    return lambda: serve(FakeEngine([Answer([[*encode("new"), END]])]), journal=tmp_path)


async def turns(server: Any, sid: str) -> int:
    async with server.http.get(f"/v1/sessions/{sid}") as response:
        return (await response.json())["turn_count"]


async def exported(server: Any, sid: str, encode: Callable[[str], list[int]], replies: list[str]) -> None:
    """The session's one sample holds these replies, in their order."""
    async with server.http.get(f"/v1/sessions/{sid}/samples") as response:
        (sample,) = (await response.json())["samples"]
    tokens, at = sample["tokens"], 0
    for text in replies:
        wanted = [*encode(text), END]
        at = next(i for i in range(at, len(tokens)) if tokens[i : i + len(wanted)] == wanted) + len(wanted)


@pytest.mark.parametrize("point", TURN_POINTS)
async def test_in_a_turn(crash: Crash, again, encode, point: str) -> None:
    pid, client = await crash.start(point)

    async def talk(http: aiohttp.ClientSession) -> None:
        await client.open(http, "s")
        while True:
            await client.ask(http, "s")

    await client.until_gone(talk)
    crash.end(pid)
    known = client.sessions["s"]
    assert (len(known.replies), known.cut) == (1, True)
    async with again() as server:
        count = await turns(server, "s")
        assert count in {"before": [1], "append": [1, 2], "sync": [2]}[_where(point)]
        await exported(server, "s", encode, known.replies)
        body = {"messages": known.messages(), "stream": True, "model": "slime-actor"}
        async with server.http.post("/s/s/v1/messages", json=body) as response:
            text = _text(await response.read())
        # A turn that is there was not told: the client, who asks again, is given it and no other.
        assert text == ("reply 2" if count == 2 else "new")
        assert await turns(server, "s") == 2


def _where(point: str) -> str:
    return "before" if point.startswith("before") else "sync" if "sync" in point else "append"


async def test_after_the_last_event(crash: Crash, again, encode) -> None:
    pid, client = await crash.start(None)
    async with aiohttp.ClientSession(client.url) as http:
        await client.open(http, "s")
        for _ in range(3):
            await client.ask(http, "s")
        crash.end(pid, kill=True)
    async with again() as server:
        assert await turns(server, "s") == 3
        await exported(server, "s", encode, ["reply 1", "reply 2", "reply 3"])


@pytest.mark.parametrize("point", FINISH_POINTS)
async def test_in_a_finish(crash: Crash, again, encode, point: str) -> None:
    pid, client = await crash.start(point)

    async def talk(http: aiohttp.ClientSession) -> None:
        await client.open(http, "s")
        await client.ask(http, "s")
        async with http.get("/v1/sessions/s/samples") as response:
            assert response.status == 200
        await client.finish(http, "s")

    await client.until_gone(talk)
    crash.end(pid)
    async with again() as server:
        async with server.http.get("/v1/sessions/s") as response:
            live = response.status == 200
        assert live in {"before": [True], "append": [True, False], "sync": [False]}[_where(point)]
        await exported(server, "s", encode, ["reply 1"])
        answers = []
        for _ in range(2):
            async with server.http.post("/v1/sessions/s/finish", json={"reward": 1.0}) as response:
                answers.append((response.status, await response.json()))
        assert answers[0] == answers[1]
        assert answers[0][0] == 200
        async with server.http.post("/v1/sessions/s/finish", json={"reward": 2.0}) as response:
            assert response.status == 409


async def _mixed(client: Client, http: aiohttp.ClientSession) -> None:
    """Sessions, of which some stay, some are finished and most are dropped."""
    for number in range(400):
        sid = f"s{number}"
        await client.open(http, sid)
        for _ in range(2):
            await client.ask(http, sid)
        if number % 8 == 1:
            await client.finish(http, sid)
        elif number % 8:
            await client.drop(http, sid)


@pytest.mark.parametrize("point", [*SEGMENT_POINTS, *COMPACTION_POINTS])
async def test_in_rotation_and_compaction(crash: Crash, again, encode, point: str) -> None:
    pid, client = await crash.start(point, **SMALL)
    await client.until_gone(lambda http: _mixed(client, http))
    crash.end(pid)
    async with again() as server:
        last = list(client.sessions)[-1]
        for sid, known in client.sessions.items():
            await _as_known(server, sid, known, encode, maybe_over=sid == last)
        async with server.http.get("/v1/sessions") as response:
            assert {each["sid"] for each in (await response.json())["sessions"]} <= client.sessions.keys()


async def _as_known(
    server: Any, sid: str, known: Conversation, encode: Callable[[str], list[int]], maybe_over: bool
) -> None:
    """``maybe_over``: its finish or drop may have been asked for, and not answered."""
    async with server.http.get(f"/v1/sessions/{sid}") as response:
        status = response.status
    if known.dropped:
        assert status == 404
    elif known.finish is not None:
        async with server.http.post(f"/v1/sessions/{sid}/finish", json={"reward": 1.0}) as response:
            assert await response.json() == known.finish
    elif status != 200:
        assert maybe_over
        assert status in (404, 410)
    else:
        assert await turns(server, sid) in (len(known.replies), len(known.replies) + known.cut)
        if known.replies:
            await exported(server, sid, encode, known.replies)


async def test_durability_os_outlives_the_process(crash: Crash, again, encode) -> None:
    """The page cache stays, so not even what nobody waited for is lost."""
    pid, client = await crash.start(None, durability="os")
    async with aiohttp.ClientSession(client.url) as http:
        for sid in ("a", "b"):
            await client.open(http, sid)
            for _ in range(3):
                await client.ask(http, sid)
        crash.end(pid, kill=True, power=False)
    async with again() as server:
        for sid in ("a", "b"):
            assert await turns(server, sid) == 3
            await exported(server, sid, encode, client.sessions[sid].replies)
