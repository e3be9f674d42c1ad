"""What the kernel is asked for, and when: a turn's frame is written, then synced, and only then is its last event sent."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.support.crashing import Crash
from tests.support.wait import LIMIT_S

CALLS = "write,pwrite64,fdatasync,fsync,sendto,sendmsg,writev"


async def traced(pid: int, output: Path) -> asyncio.subprocess.Process:
    """strace, once it is attached. Skips where it is missing, or not allowed."""
    program = shutil.which("strace")
    if program is None:
        pytest.skip("strace is not installed")
    options = ["-f", "-y", "-s", "100000", "-e", f"trace={CALLS}", "-o", str(output), "-p", str(pid)]
    process = await asyncio.create_subprocess_exec(program, *options, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    told = (await asyncio.wait_for(process.stderr.readline(), LIMIT_S)).decode()
    if "attached" not in told:
        await process.wait()
        pytest.skip(f"strace may not attach here: {told.strip()}")
    return process


@dataclass
class Call:
    """``text``: name, arguments and result; ``begun`` and ``ended``: lines of the trace."""

    text: str
    begun: int
    ended: int


def calls_of(trace: str) -> list[Call]:
    running: dict[str, Call] = {}
    calls = []
    for number, line in enumerate(trace.splitlines()):
        thread, _, rest = line.partition(" ")
        rest = rest.strip()
        if rest.endswith("<unfinished ...>"):
            running[thread] = Call(rest.removesuffix("<unfinished ...>"), number, number)
        elif (resumed := re.match(r"<\.\.\. \w+ resumed>(.*)", rest)) is not None and thread in running:
            call = running.pop(thread)
            calls.append(Call(call.text + resumed[1], call.begun, number))
        else:
            calls.append(Call(rest, number, number))
    return calls


def first(calls: list[Call], name: str, *parts: str, behind: int = -1) -> Call:
    """That began behind a line."""
    return next(
        call
        for call in sorted(calls, key=lambda call: call.begun)
        if call.begun > behind and call.text.startswith(name) and all(part in call.text for part in parts)
    )


async def test_the_sync_comes_before_the_last_event(crash: Crash, tmp_path: Path) -> None:
    pid, client = await crash.start(None)
    output = tmp_path / "trace"
    async with aiohttp.ClientSession(client.url) as http:
        await client.open(http, "s")
        strace = await traced(pid, output)
        await client.ask(http, "s")
        strace.send_signal(signal.SIGINT)
        await strace.wait()
    crash.end(pid, kill=True)
    calls = calls_of(output.read_text(errors="replace"))
    written = first(calls, "write", ".journal>", r"\"sid\":\"s\"", r"\"plan\"")
    synced = first(calls, "fdatasync", ".journal>", "= 0", behind=written.ended)
    told = first(calls, "sendto", "message_stop")
    assert written.ended < synced.begun <= synced.ended < told.begun
