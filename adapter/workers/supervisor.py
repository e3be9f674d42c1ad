"""The supervisor: starts a process per slot, replaces those that end or hang, stops them all in good order.

    STARTING ──ready──► SERVING ──ended, or silent for worker_hang_s──► STARTING (after a pause that grows)
                           └──────── stop ────► DRAINING ──ended, or past the deadline──► gone

A replaced worker reads its slot's journal and goes on with the sessions that it had. While a slot has no worker, requests for its
sessions are answered with 503 and ``Retry-After`` by the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from adapter.config import Config
from adapter.http.server import told_where
from adapter.logs import event
from adapter.workers.protocol import Assignment, message, read_message

logger = logging.getLogger("rollserve.workers")

START_TIMEOUT_S = 120.0
"""Loading a tokenizer and reading a journal of some gigabytes."""
PINGS_PER_HANG = 5
"""Pings within ``worker_hang_s``."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
"""Before a slot's next worker; doubled each time a worker ends before it was ready."""
STOP_MARGIN_S = 5.0
"""For closing the journal and the connections, on top of the grace time of turns."""


class WorkersFailed(Exception):
    """A worker ended before it was ready, at the first start; the log has its reason."""


@dataclass(slots=True)
class _Worker:
    """The process of one slot at present. ``answered_at`` is the loop's time of its last pong."""

    process: asyncio.subprocess.Process
    answered_at: float
    pings: int = 0


@dataclass(slots=True)
class Supervisor:
    """Keeps the workers of ``assignments`` running."""

    assignments: Sequence[Assignment]
    config: Config
    _workers: dict[int, _Worker] = field(default_factory=dict)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        """Until every worker serves. Raises: WorkersFailed."""
        await asyncio.gather(*(self._start(assignment) for assignment in self.assignments))

    async def run(self) -> None:
        """Watch the workers until ``stop``."""
        async with asyncio.TaskGroup() as group:
            for assignment in self.assignments:
                group.create_task(self._keep(assignment))

    async def stop(self) -> None:
        """Ask every worker to stop; kill those that are still there after the deadline."""
        self._stopping.set()
        processes = [worker.process for worker in self._workers.values() if worker.process.returncode is None]
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        ended = [asyncio.create_task(process.wait()) for process in processes]
        if ended:
            await asyncio.wait(ended, timeout=self.config.finish_grace_s + STOP_MARGIN_S)
        for process in processes:
            if process.returncode is None:
                event(logger, logging.WARNING, "worker_killed", pid=process.pid, reason="it did not stop in time")
                process.kill()
                await process.wait()

    async def _keep(self, assignment: Assignment) -> None:
        """Watch a slot, and start its next worker whenever one ends."""
        pause = FIRST_PAUSE_S
        while not self._stopping.is_set():
            worker = self._workers.get(assignment.slot)
            if worker is not None:
                await self._watch(assignment.slot, worker)
            await asyncio.sleep(0 if self._stopping.is_set() else pause)
            try:
                if not self._stopping.is_set():
                    await self._start(assignment)
                pause = FIRST_PAUSE_S
            except WorkersFailed as error:
                if self._stopping.is_set():
                    return
                event(logger, logging.ERROR, "worker_failed", slot=assignment.slot, reason=str(error))
                self._workers.pop(assignment.slot, None)
                pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _watch(self, slot: int, worker: _Worker) -> None:
        """Until the worker has ended, by itself or because it hung."""
        pinging = asyncio.create_task(self._ping(slot, worker))
        listening = asyncio.create_task(_listen(worker))
        status = await worker.process.wait()
        for task in (pinging, listening):
            task.cancel()
        await asyncio.gather(pinging, listening, return_exceptions=True)
        if not self._stopping.is_set():
            event(logger, logging.WARNING, "worker_ended", slot=slot, pid=worker.process.pid, status=status)

    async def _ping(self, slot: int, worker: _Worker) -> None:
        loop = asyncio.get_running_loop()
        assert worker.process.stdin is not None
        while True:
            if loop.time() - worker.answered_at > self.config.worker_hang_s:
                event(logger, logging.WARNING, "worker_killed", slot=slot, pid=worker.process.pid, reason="it hangs")
                worker.process.kill()
                return
            worker.pings += 1
            with contextlib.suppress(ConnectionError):
                worker.process.stdin.write(message(ping=worker.pings))
            await asyncio.sleep(self.config.worker_hang_s / PINGS_PER_HANG)

    async def _start(self, assignment: Assignment) -> None:
        """Raises: WorkersFailed."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "adapter.workers", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        self._workers[assignment.slot] = _Worker(process, asyncio.get_running_loop().time())
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(assignment.encode())
            await process.stdin.drain()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                url = await _ready(process)
        except TimeoutError:
            process.kill()
            raise WorkersFailed(f"worker {assignment.slot} was not ready after {START_TIMEOUT_S:g} s") from None
        if url is None:
            raise WorkersFailed(
                f"worker {assignment.slot} ended with status {await process.wait()} before it was ready"
            )
        self._workers[assignment.slot].answered_at = asyncio.get_running_loop().time()
        event(logger, logging.INFO, "worker_ready", slot=assignment.slot, pid=process.pid, url=url)


async def _ready(process: asyncio.subprocess.Process) -> str | None:
    """The worker's URL; None if it ended."""
    assert process.stdout is not None
    while line := await process.stdout.readline():
        url = read_message(line).get("ready")
        if isinstance(url, str):
            return url
    return None


async def _listen(worker: _Worker) -> None:
    assert worker.process.stdout is not None
    while line := await worker.process.stdout.readline():
        if "pong" in read_message(line):
            worker.answered_at = asyncio.get_running_loop().time()


@asynccontextmanager
async def workers(config: Config, triton: Sequence[str]) -> AsyncIterator[str]:
    """As many workers as configured, all of them serving; gives the URL that they share. Raises: ConfigError, WorkersFailed."""
    config, ports = _ports(config)
    supervisor = Supervisor(_assignments(config, triton, ports), config)
    watching: asyncio.Task[None] | None = None
    try:
        await supervisor.start()
        watching = asyncio.create_task(supervisor.run())
        yield f"http://{config.host}:{config.port}"
    finally:
        await supervisor.stop()
        if watching is not None:
            await watching


def _assignments(config: Config, triton: Sequence[str], ports: Sequence[int]) -> list[Assignment]:
    base = urlsplit(config.advertise_url or f"http://{config.host}")
    urls = tuple(f"{base.scheme}://{base.hostname}:{port}" for port in ports)
    secret = secrets.token_urlsafe(32)
    return [Assignment(slot, tuple(triton), urls, tuple(ports), secret, config) for slot in range(config.workers)]


def _ports(config: Config) -> tuple[Config, list[int]]:
    """The configuration with a port, and a port for each slot. Raises: ConfigError, if one is taken."""
    if config.port == 0:
        shared, *own = _free_ports(config.host, config.workers + 1)
        return dataclasses.replace(config, port=shared), own
    own = [config.port + 1 + slot for slot in range(config.workers)]
    for port in (config.port, *own):
        _bound(config.host, port).close()
    return config, own


def _free_ports(host: str, count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(_bound(host, 0)) for _ in range(count)]
        return [each.getsockname()[1] for each in found]


def _bound(host: str, port: int) -> socket.socket:
    """Raises: ConfigError, if it cannot be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as opened, told_where(host, port):
        made = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        opened.pop_all()
    return made
