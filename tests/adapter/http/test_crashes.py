"""Processes that are killed at one point each; then the machine loses its power too. What a client saw complete is there again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.adapter.http.test_keep import END
from tests.support.crashing import Client, Conversation, Crash, text_of
from tests.support.dying_server import POINTS
from tests.support.engine import Answer, FakeEngine

TURN_POINTS = [point for point in POINTS if "of a turn" in point]
FINISH_POINTS = [point for point in POINTS if "of a finish" in point]
SEGMENT_POINTS = [point for point in POINTS if "segment" in point]
COMPACTION_POINTS = [point for point in POINTS if "compaction" in point]
SMALL = {"journal_segment_bytes": 4096}


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
            text = text_of(await response.read())
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
    """``maybe_over``: it may not be open yet, or its finish or drop was asked for and not answered."""
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
