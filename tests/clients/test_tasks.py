"""Whole tasks: every CLI does its work with its own tools, and the session is recorded as it happened."""

from __future__ import annotations

import asyncio
import dataclasses
import re

from tests.clients.checks import check_done, every_cli
from tests.clients.cli import Cli
from tests.clients.clis import CLIS
from tests.clients.conftest import Arena
from tests.clients.scenarios import FIRST_ANSWER


@every_cli
async def test_a_task(arena: Arena, cli: Cli) -> None:
    agent = await arena.agent(cli, "task")
    await check_done(agent, await agent.says("start"))
    verdict = await agent.judged()
    assert verdict.labels["main"] == 4


@every_cli
async def test_a_conversation_that_is_resumed(arena: Arena, cli: Cli) -> None:
    agent = await arena.agent(cli, "resumed")
    first = await agent.says("start")
    assert first.status == 0 and FIRST_ANSWER in first.said, first
    await check_done(agent, await agent.says("again", resume=True))
    verdict = await agent.judged()
    assert verdict.labels["main"] == 5


@every_cli
async def test_a_session_that_the_cli_names_itself(arena: Arena, cli: Cli) -> None:
    before = await arena.sessions()
    agent = arena.unnamed_agent(cli, "own-name")
    ended = await agent.says("start")
    (sid,) = await arena.sessions() - before
    assert re.fullmatch(cli.session_name or re.escape(agent.sid), sid), sid
    agent = dataclasses.replace(agent, sid=sid)
    await check_done(agent, ended)
    await agent.judged()


@every_cli
async def test_a_sub_agent(arena: Arena, cli: Cli) -> None:
    agent = await arena.agent(cli, "delegated")
    await check_done(agent, await agent.says("start"))
    verdict = await agent.judged()
    waits = verdict.labels["main"] - 3
    assert waits >= 1 if cli.tools.meanwhile else waits == cli.tools.agent_reports_later
    assert verdict.labels["subagent"] == 2


async def test_all_at_once(arena: Arena) -> None:
    agents = [await arena.agent(cli, "task", copy) for copy in (1, 2) for cli in CLIS]
    ended = await asyncio.gather(*(agent.says("start") for agent in agents))
    for agent, end in zip(agents, ended, strict=True):
        await check_done(agent, end)
        await agent.judged()
