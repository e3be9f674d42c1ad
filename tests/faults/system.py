"""The whole system as processes: ``rollserve up`` with workers over the scripted model, to be killed in every part.

What a kill leaves in the page cache is taken away too: before a killed part starts again, the journal is cut back to what was
synced for certain, as if the machine had lost its power.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from tests.support.power import lose_page_cache

COMMAND = Path(sys.executable).with_name("rollserve")
WORKERS = 2
START_S = 120.0
"""Until the whole system serves; seconds on a quiet machine."""


@dataclass
class System:
    """``rollserve up`` in ``folder``, on ``port``. ``arguments`` are further options."""

    folder: Path
    port: int
    arguments: list[str]
    process: asyncio.subprocess.Process | None = None
    pids: dict[int, int] = field(default_factory=dict)
    """Of the workers, by slot."""
    cut_bytes: int = 0
    """What the journal lost when parts were killed: written, but not known to be synced."""
    _reading: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            COMMAND, "up", "--port", str(self.port), "--workers", str(WORKERS), "--journal", str(self.journal),
            "--log-format", "json", *self.arguments,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, limit=1 << 24,
        )  # fmt: skip
        self._reading = asyncio.create_task(self._read_log(self.process))
        await self.ready()

    async def stop(self) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        await self.process.wait()
        assert self._reading is not None
        await self._reading

    async def ready(self) -> None:
        """Until every worker would reach the engine."""
        async with asyncio.timeout(START_S), aiohttp.ClientSession() as http:
            while not await self._is_ready(http):  # noqa: ASYNC110 - it is in other processes
                await asyncio.sleep(0.1)

    async def _is_ready(self, http: aiohttp.ClientSession) -> bool:
        try:
            async with http.get(f"{self.url}/readyz", timeout=aiohttp.ClientTimeout(total=5)) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    def kill_worker(self, slot: int) -> None:
        """With its supervisor held still, so that the next one starts on what is left of the journal."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            self._kill(self.pids[slot])
            self._lose_page_cache(slot)
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    def kill_triton(self) -> None:
        assert self.process is not None
        for pid in _descendants(self.process.pid):
            if _command(pid).split(" ")[0].endswith("/tritonserver"):
                self._kill(pid)
                return

    async def kill_everything(self) -> None:
        """The supervisor with all its workers at once, as when the machine stops; then a new start."""
        assert self.process is not None
        pids = [self.process.pid, *self.pids.values()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            self._kill(pid)
        await self.process.wait()
        for slot in range(WORKERS):
            self._lose_page_cache(slot)
        await self.start()

    async def kill_supervisor(self) -> None:
        """Its workers see that it is gone and stop by themselves; then a new start."""
        assert self.process is not None
        self._kill(self.process.pid)
        await self.process.wait()
        await self.start()

    def _kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        while _is_running(pid):
            pass  # a killed process ends within milliseconds; nothing else may happen before that

    def _lose_page_cache(self, slot: int) -> None:
        """Cut the slot's newest segments back to what its last sync covered."""
        for mark in self.journal.glob(f"*/{slot:02d}.synced"):
            self.cut_bytes += lose_page_cache(mark.parent, slot)

    async def _read_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        with (self.folder / "server.log").open("ab") as file:
            while line := await process.stderr.readline():
                file.write(line)
                with contextlib.suppress(ValueError):
                    entry = json.loads(line)
                    if entry.get("event") == "worker_ready":
                        self.pids[entry["slot"]] = entry["pid"]


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *_descendants(child)]
    return found
