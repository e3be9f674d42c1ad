"""Runs an agent's command as a process group of its own, for a limited time; nothing of it is left running."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

OUTPUT_BYTES = 4096
"""How much of the end of the agent's output is kept."""


@dataclass(frozen=True, slots=True)
class AgentRun:
    """How it ended. ``output`` is the end of what it wrote to standard output and error."""

    returncode: int
    timed_out: bool
    output: str


async def run_agent(
    words: Sequence[str], *, environ: Mapping[str, str], stdin: str, timeout_s: float, grace_s: float
) -> AgentRun:
    """Run the command in a temporary folder, with ``stdin`` as its standard input.

    After ``timeout_s`` the group gets SIGTERM, ``grace_s`` later SIGKILL; whatever the agent left in the background gets
    SIGKILL in any case, also when this call is cancelled. Raises: OSError, if the command cannot be started.
    """
    with (
        tempfile.TemporaryDirectory(prefix="rollserve-agent-") as folder,
        _file(stdin.encode()) as given,
        _file(b"") as output,
    ):
        process = await asyncio.create_subprocess_exec(
            *words,
            env=dict(environ),
            cwd=folder,
            stdin=given,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            timed_out = not await _ended(process, timeout_s)
            if timed_out:
                _signal_group(process, signal.SIGTERM)
                await _ended(process, grace_s)
        finally:
            _signal_group(process, signal.SIGKILL)
            returncode = await process.wait()
        return AgentRun(returncode, timed_out, _end_of(output))


def _file(content: bytes) -> IO[bytes]:
    """A file and not a pipe: what the agent leaves running may keep it open without holding anybody up."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the caller
    file.write(content)
    file.seek(0)
    return file


async def _ended(process: asyncio.subprocess.Process, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.wait()
    return process.returncode is not None


def _signal_group(process: asyncio.subprocess.Process, signum: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signum)


def _end_of(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - OUTPUT_BYTES))
    return output.read().decode(errors="replace")
