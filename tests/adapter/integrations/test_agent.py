"""An agent's command ends in time, whatever it does, and leaves nothing running."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from adapter.integrations.agent import AgentRun, run_agent
from tests.support.processes import assert_gone
from tests.support.wait import until

AGENT = (sys.executable, "-m", "tests.adapter.integrations.agents")
LIMIT_S = 60.0
SHORT_S = 2.0
"""Enough for a shell to get going; what does not end by itself is stopped then."""


async def run(*words: str, stdin: str = "", timeout_s: float = LIMIT_S, grace_s: float = 0.0) -> AgentRun:
    return await run_agent(words, environ=os.environ, stdin=stdin, timeout_s=timeout_s, grace_s=grace_s)


async def test_it_gets_its_standard_input_and_a_folder_of_its_own() -> None:
    script = "import sys, os; print(sys.stdin.read().upper(), os.listdir()); sys.exit(4)"
    ended = await run(sys.executable, "-c", script, stdin="ein Gruß")
    assert ended == AgentRun(4, False, "EIN GRUSS []\n")


async def test_only_the_end_of_a_long_output_is_kept() -> None:
    ended = await run(sys.executable, "-c", "import sys; print('a' * 10**6); print('end', file=sys.stderr)")
    assert len(ended.output) == 4096
    assert ended.output.endswith("a\nend\n")


async def test_one_that_does_not_end_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    """It ignores SIGTERM, and its child would live on."""
    script = f"trap '' TERM; sleep 1000 & echo $! $$ > {tmp_path / 'pids'}; wait; wait; sleep 1000"
    ended = await run("sh", "-c", script, timeout_s=SHORT_S)
    assert (ended.returncode, ended.timed_out) == (-9, True)
    assert_gone(pids_in(tmp_path / "pids"))


async def test_one_that_obeys_may_end_by_itself() -> None:
    script = "trap 'exit 7' TERM; echo 1; sleep 1000 & wait"
    ended = await run("sh", "-c", script, timeout_s=SHORT_S, grace_s=LIMIT_S)
    assert (ended.returncode, ended.timed_out, ended.output) == (7, True, "1\n")


async def test_what_it_leaves_in_the_background_is_killed(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        f"pathlib.Path({str(tmp_path / 'pids')!r}).write_text(str(child.pid))"
    )
    assert (await run(sys.executable, "-c", script)).returncode == 0
    assert_gone(pids_in(tmp_path / "pids"))


async def test_a_cancelled_run_leaves_nothing(tmp_path: Path) -> None:
    task = asyncio.create_task(run(*AGENT, "hang", str(tmp_path / "pids")))
    await until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_gone(pids_in(tmp_path / "pids"))


async def test_a_command_that_is_not_there_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        await run("/no/such/agent")


def pids_in(file: Path) -> list[int]:
    pids = [int(pid) for pid in file.read_text().split()]
    assert pids
    return pids
