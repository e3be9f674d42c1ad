"""When something goes wrong the CLIs go on by themselves, and the session is still one branch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from adapter.errors import TooManyRequests
from adapter.sessions import Session
from tests.clients.checks import check_done, check_work, every_cli
from tests.clients.cli import Cli
from tests.clients.clis import CLIS
from tests.clients.conftest import Arena
from tests.clients.scenarios import LONG_CONTENT, ROOM_TOKENS


@every_cli
async def test_a_call_that_breaks_off(arena: Arena, cli: Cli) -> None:
    agent = await arena.agent(cli, "cut-call")
    await check_done(agent, await agent.says("start"), LONG_CONTENT)
    await agent.judged()


@every_cli
async def test_a_text_that_breaks_off(arena: Arena, cli: Cli) -> None:
    agent = await arena.agent(cli, "cut-text")
    await check_done(agent, await agent.says("start"))
    await agent.judged()


@every_cli
async def test_a_server_that_is_busy(arena: Arena, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = await arena.agent(cli, "busy")
    refused = refuse_once(monkeypatch, agent.sid, turn=2)
    await check_done(agent, await agent.says("start"))
    assert refused == [agent.sid]
    await agent.judged()


def refuse_once(monkeypatch: pytest.MonkeyPatch, sid: str, turn: int) -> list[str]:
    """The session's turn number ``turn`` is answered with 429 and ``Retry-After``, once. Gives whom it was said to."""
    admit = Session._admit
    refused: list[str] = []

    def reluctant(session: Session, *limits: Any) -> None:
        if session.sid == sid and session.turns_started == turn - 1 and not refused:
            refused.append(sid)
            raise TooManyRequests("too many turns at once", retry_after=1)
        admit(session, *limits)

    monkeypatch.setattr(Session, "_admit", reluctant)
    return refused


async def test_a_minute_of_silence(arena: Arena) -> None:
    """All CLIs wait at the same time."""
    agents = [await arena.agent(cli, "silence") for cli in CLIS]
    ended = await asyncio.gather(*(agent.says("start") for agent in agents))
    for agent, end in zip(agents, ended, strict=True):
        await check_done(agent, end)
        verdict = await agent.judged()
        assert verdict.labels["main"] == 3, f"{agent.cli}: {verdict}"


@every_cli
async def test_a_prompt_past_the_context(arena: Arena, cli: Cli) -> None:
    agent = await arena.agent(cli, "overflow", max_context_tokens=cli.prompt_tokens + ROOM_TOKENS)
    ended = await agent.says("start")
    if cli.at_overflow:
        assert ended.status != 0
        assert cli.at_overflow in ended.said + ended.errors
    else:  # opencode ends with status 1 whenever there was an error, though it went on
        await check_work(agent, ended)
    await agent.judged()
