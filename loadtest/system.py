"""What is measured, as processes: a real tritonserver with the scripted model, and servers in front of it.

    async with scripted_system(script, tokenizer, coalesce_ms=20) as system:
        ... system.server.url ...
        async with system.another("--durability", "none") as second:
            ...

The first server starts the Triton (``rollserve up``); others attach to it (``rollserve serve``). All listen on free ports of
127.0.0.1, keep their journals and logs in a temporary folder, and are ended with the block.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_S = 120.0
"""Until a server listens; seconds on a quiet machine."""
STOP_S = 20.0
LISTENS = re.compile(r"rollserve listens on (\S+)")
ENCODING = re.compile(r" encoding (?:worker=\d+ )?model=")
TRITON = re.compile(r"Triton is ready on (\S+)")


class SystemFailed(Exception):
    """A server did not start; the message ends with its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that listens. ``log`` is what it writes to standard error."""

    url: str
    pid: int
    log: Path

    def cpu_s(self) -> float:
        """CPU time of the process so far, all threads, user and system; Triton is another process."""
        return process_cpu_s(self.pid)


@dataclass(frozen=True, slots=True)
class System:
    """A Triton and the first server in front of it."""

    folder: Path
    server: Server
    triton: str
    """Its gRPC address."""
    tokenizer: Path
    engine_log: Path

    @asynccontextmanager
    async def another(self, *options: str) -> AsyncIterator[Server]:
        """A further server in front of the same Triton, by default with a journal of its own."""
        arguments = ["serve", "--triton", self.triton, "--tokenizer", str(self.tokenizer), *options]
        async with _running(arguments, self.folder) as server:
            yield server

    def logged(self) -> list[dict[str, Any]]:
        """What the engine says that it sampled, one entry a request that ended."""
        return [json.loads(line) for line in _text(self.engine_log).splitlines()]


@asynccontextmanager
async def scripted_system(
    script: dict[str, Any], tokenizer: Path, *options: str, coalesce_ms: float = 20, adaptive: bool = True
) -> AsyncIterator[System]:
    """``script`` is the scripted model's; ``options`` are the first server's. Raises: SystemFailed.

    ``adaptive``: the window of ``coalesce_ms`` grows with the replies that are streamed, as it does by default.
    """
    with tempfile.TemporaryDirectory(prefix="rollserve-bench-") as name:
        folder = Path(name)
        script_file, engine_log = folder / "script.json", folder / "engine.jsonl"
        script_file.write_text(json.dumps(script))
        arguments = ["up", "--engine-model", "scripted", "--engine-log", str(engine_log), *options]
        arguments += ["--engine-setting", f"script={script_file}", "--engine-setting", f"coalesce_ms={coalesce_ms:g}"]
        arguments += [] if adaptive else ["--engine-setting", "coalesce_per_live_ms=0"]
        arguments += ["--tokenizer", str(tokenizer)]
        async with _running(arguments, folder) as server:
            found = TRITON.search(_text(server.log))
            assert found is not None
            yield System(folder, server, found[1], tokenizer, engine_log)


async def changed_over(server: Server, workers: int = 1) -> None:
    """Until all workers have their cheaper tokenizer, some 15 s after the start: before, they work harder. Raises: SystemFailed."""
    deadline = time.monotonic() + START_S
    while len(ENCODING.findall(_text(server.log))) < workers:
        if time.monotonic() > deadline:
            raise SystemFailed("the server did not examine its cheaper tokenizer")
        await asyncio.sleep(0.2)


@asynccontextmanager
async def attached(triton: str, tokenizer: Path, *options: str) -> AsyncIterator[Server]:
    """A server in front of a Triton that runs already. Raises: SystemFailed."""
    with tempfile.TemporaryDirectory(prefix="rollserve-bench-") as name:
        arguments = ["serve", "--triton", triton, "--tokenizer", str(tokenizer), *options]
        async with _running(arguments, Path(name)) as server:
            yield server


@asynccontextmanager
async def real_system(model: Path, engine_log: Path, *options: str, start_s: float = START_S) -> AsyncIterator[Server]:
    """A Triton with the model of a checkpoint folder, and a server in front of it. Raises: SystemFailed."""
    with tempfile.TemporaryDirectory(prefix="rollserve-bench-") as name:
        arguments = ["up", "--engine-model", "transformers", "--model-dir", str(model), "--engine-log", str(engine_log)]
        async with _running([*arguments, *options], Path(name), start_s) as server:
            yield server


def _command() -> list[str]:
    """``rollserve`` of this interpreter, whether it is installed or only on the import path."""
    script = Path(sys.executable).with_name("rollserve")
    return [str(script)] if script.exists() else [sys.executable, "-c", "from adapter.cli import main; main()"]


@asynccontextmanager
async def _running(arguments: list[str], folder: Path, start_s: float = START_S) -> AsyncIterator[Server]:
    own = Path(tempfile.mkdtemp(dir=folder))
    log, out = own / "log", own / "out"
    journal = (
        [] if "none" in arguments else ["--journal", str(own / "journal")]
    )  # without one a folder for it is refused
    with log.open("wb") as errors, out.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *_command(), *arguments, *journal, "--port", "0", stdout=output, stderr=errors
        )
    try:
        yield Server(await _listening(process, out, log, start_s), process.pid, log)
    finally:
        await _stop(process)


async def _listening(process: asyncio.subprocess.Process, out: Path, log: Path, start_s: float) -> str:
    deadline = time.monotonic() + start_s
    while process.returncode is None and time.monotonic() < deadline:
        if found := LISTENS.search(_text(out)):
            return found[1]
        await asyncio.sleep(0.05)
    raise SystemFailed(f"the server did not start:\n{_text(log)[-2000:]}")


async def _stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), STOP_S)
    except TimeoutError:
        process.kill()
        await process.wait()


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def process_cpu_s(pid: int) -> float:
    """CPU time of another process in seconds, to the nanosecond: Linux's per-process clock (clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)
