"""What is asked of every agent that came to its end."""

from __future__ import annotations

import pytest

from tests.clients.cli import Ended
from tests.clients.clis import CLIS
from tests.clients.conftest import Agent
from tests.clients.scenarios import ANSWER, CONTENT, RESULT

every_cli = pytest.mark.parametrize("cli", CLIS, ids=str)


async def check_done(agent: Agent, ended: Ended, content: str = CONTENT) -> None:
    """It ended well, and its work is done."""
    assert ended.status == 0, ended
    await check_work(agent, ended, content)


async def check_work(agent: Agent, ended: Ended, content: str = CONTENT) -> None:
    """It said so, its file is there, its command ran, and the model saw what the command printed."""
    assert ANSWER in ended.said, ended
    assert (agent.place.work / "notes.txt").read_text() == content
    results = await agent.tool_results()
    assert RESULT in results, results
