"""Whole tasks: every CLI does its work with its own tools, and the session is recorded as it happened."""

from __future__ import annotations

import pytest

from tests.clients.cli import CLIS, Cli, Ended
from tests.clients.conftest import Agent, Arena
from tests.clients.scenarios import ANSWER, CONTENT, RESULT

every_cli = pytest.mark.parametrize("cli", CLIS, ids=str)


async def check_task(agent: Agent, ended: Ended) -> None:
    assert ended.status == 0, ended
    assert ANSWER in ended.said, ended
    assert (agent.place.work / "notes.txt").read_text() == CONTENT
    results = await agent.tool_results()
    assert RESULT in results
    assert "zweite Zeile: äöü €" in results


@every_cli
async def test_a_task(arena: Arena, cli: Cli) -> None:
    agent = await arena.agent(cli, "task")
    await check_task(agent, await agent.says("start"))
    assert (await agent.judged()).turns >= 4
