"""Endpoints in memory, and a clock that a test moves: what a pool does can be told to the token and to the second.

The engine of a ``FakeEndpoint`` is greedy: token number n of a reply is a function of the ids before it, so whatever the segments,
the whole has to come out the same. What happens to its generations is planned: ``endpoint.plans`` has one for each, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine.affinity import choose
from engine.errors import EngineError, EngineFailed, EngineUnavailable
from engine.pool import Pool, PoolOptions
from engine.types import EngineInfo, Finished, FinishReason, GenerateRequest, Ids, LogProbMode, TokenChunk

INFO = EngineInfo("fake", LogProbMode.RAW, max_seq_len=4096, vocab_size=1000, weight_version=1)


def next_token(ids: list[int]) -> int:
    return (31 * ids[-1] + 7 * len(ids)) % 1000


def greedy(prompt: Ids, count: int) -> list[int]:
    """The reply that an engine gives which nothing happens to."""
    ids = prompt.tolist()
    for _ in range(count):
        ids.append(next_token(ids))
    return ids[len(prompt) :]


@dataclass
class Plan:
    """``error`` comes after ``tokens``; with neither the generation goes on to its end. Before token ``wait_at`` it waits for
    ``gate``."""

    tokens: int | None = None
    error: EngineError | None = None
    wait_at: int | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)


class ManualClock:
    """Time passes by ``advance`` alone."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._now + seconds, self._count, waiting))
        await waiting

    async def advance(self, seconds: float) -> None:
        """Let so much time pass, and everybody do meanwhile what is then to be done."""
        until = self._now + seconds
        await settled()
        while self._sleepers and self._sleepers[0][0] <= until:
            self._now, _, waiting = heapq.heappop(self._sleepers)
            if not waiting.done():
                waiting.set_result(None)
            await settled()
        self._now = until


async def settled() -> None:
    """All tasks have got as far as they can."""
    for _ in range(40):
        await asyncio.sleep(0)


@dataclass
class FakeEndpoint:
    """A server: ``down`` is the error of everything that is sent there, ``mute`` that of control requests."""

    address: str
    info: EngineInfo = INFO
    plans: list[Plan] = field(default_factory=list)
    down: EngineError | None = None
    mute: EngineError | None = None
    refusal: EngineError | None = None
    """Of new weights."""
    update_gate: asyncio.Event | None = None
    """What an update waits for."""
    path: str = ""
    """Of its weights, as it says."""
    unfit: EngineError | None = None
    """What the probe raises."""
    trial_gate: asyncio.Event | None = None
    """What a trial waits for."""
    requests: list[GenerateRequest] = field(default_factory=list)
    running: dict[str, asyncio.Event] = field(default_factory=dict)
    """By request id: set when the generation is to stop."""
    aborted: set[str] = field(default_factory=set)
    controls: list[dict[str, Any]] = field(default_factory=list)
    trials: int = 0
    losses: int = 0
    """Of its connections: they are lost when it is killed."""
    starts: int = 1
    anonymous: bool = False
    """It does not say which of its starts answers."""
    stats_gate: asyncio.Event | None = None
    """What an answer to ``stats`` waits for."""
    on_losses: list[Callable[[], None]] = field(default_factory=list)
    open_clients: int = 0
    ignores_stop: bool = False

    def kill(self) -> None:
        """As a server that dies: what runs breaks off, and nothing can be reached."""
        self.starts += 1
        self.lose()
        self.down = EngineUnavailable(f"no connection to {self.address}")
        for stopped in self.running.values():
            stopped.set()

    def lose(self) -> None:
        """The connections are lost; nothing else happens."""
        self.losses += 1
        for tell in self.on_losses:
            tell()

    def revive(self) -> None:
        self.down = None

    def restart(self, **info: Any) -> None:
        """Killed and back at once, with another ``info``."""
        self.kill()
        self.revive()
        self.info = replace(self.info, **info)

    def stats(self) -> dict[str, Any]:
        said: dict[str, Any] = {"vocab_size": self.info.vocab_size, "max_seq_len": self.info.max_seq_len}
        said |= {"live": len(self.running), "path": self.path}
        return said if self.anonymous else {**said, "instance": f"start {self.starts}"}

    def check(self) -> None:
        if self.down is not None:
            raise self.down


class FakeClient:
    """An ``engine.endpoint.Client``."""

    def __init__(self, server: FakeEndpoint) -> None:
        self._server = server
        self.info = server.info

    @property
    def losses(self) -> int:
        return self._server.losses

    def on_loss(self, tell: Callable[[], None]) -> None:
        self._server.on_losses = [tell]

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        server = self._server
        server.check()
        server.requests.append(request)
        plan = server.plans.pop(0) if server.plans else Plan()
        stopped = server.running[request.request_id] = asyncio.Event()
        try:
            async with aclosing(self._tokens(request, plan, stopped)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            del server.running[request.request_id]

    async def _tokens(
        self, request: GenerateRequest, plan: Plan, stopped: asyncio.Event
    ) -> AsyncGenerator[TokenChunk, None]:
        server, ids = self._server, request.prompt_ids.tolist()
        for count in range(request.max_tokens):
            if plan.tokens == count and plan.error is not None:
                raise plan.error
            if plan.wait_at == count:
                await _either(plan.gate, stopped)
            await asyncio.sleep(0)
            if server.down is not None:
                raise EngineFailed("the generation broke off") if count else server.down
            if request.request_id in server.aborted:
                raise EngineFailed("the connection was closed on our side")
            if stopped.is_set():
                yield _chunk([], server.info.weight_version, Finished(FinishReason.CANCELLED, 5))
                return
            ids.append(next_token(ids))
            last = count + 1 == request.max_tokens
            yield _chunk(ids[-1:], server.info.weight_version, Finished(FinishReason.LENGTH, 3) if last else None)

    async def connect(self) -> None:
        self._server.check()

    async def control(self, operation: str, **arguments: Any) -> dict[str, Any]:
        server = self._server
        server.check()
        if server.mute is not None:
            raise server.mute
        server.controls.append({"op": operation, **arguments})
        if operation == "update_weights":
            if server.update_gate is not None:
                await server.update_gate.wait()
            if server.refusal is not None:
                raise server.refusal
            server.info = replace(server.info, weight_version=arguments["version"])
            server.path = arguments.get("path", "")
        elif server.stats_gate is not None:
            await server.stats_gate.wait()
            server.check()
        return {"op": operation, "weight_version": server.info.weight_version, **server.stats()}

    async def stop(self, request_id: str) -> None:
        self._server.check()
        if not self._server.ignores_stop and request_id in self._server.running:
            self._server.running[request_id].set()

    def abort(self, request_id: str) -> None:
        self._server.aborted.add(request_id)
        self._server.running[request_id].set()

    async def close(self) -> None:
        self._server.open_clients -= 1


class Fleet:
    """Endpoints by address, and what opens clients for them."""

    def __init__(self, count: int) -> None:
        self.servers = {f"server-{number}:1": FakeEndpoint(f"server-{number}:1") for number in range(count)}
        self.clock = ManualClock()

    def __getitem__(self, number: int) -> FakeEndpoint:
        return self.servers[f"server-{number}:1"]

    def home(self, session: str = "one") -> FakeEndpoint:
        """Where the session goes if nothing speaks against it."""
        return self.servers[choose(session, dict.fromkeys(self.servers, 0))]

    def others(self, session: str = "one") -> list[FakeEndpoint]:
        return [server for server in self.servers.values() if server is not self.home(session)]

    async def open(self, address: str) -> FakeClient:
        server = self.servers[address]
        server.trials += 1
        if server.trial_gate is not None:
            await server.trial_gate.wait()
        server.check()
        if server.unfit is not None:
            raise server.unfit
        server.open_clients += 1
        return FakeClient(server)

    @asynccontextmanager
    async def pool(self, **options: Any) -> AsyncIterator[Pool]:
        async with Pool(list(self.servers), self.open, PoolOptions(**options), self.clock) as pool:
            yield pool


def request(session: str = "one", max_tokens: int = 10, **fields: Any) -> GenerateRequest:
    return GenerateRequest(f"gen-{session}", np.array([1, 2, 3], np.int32), max_tokens, session=session, **fields)


class Reading:
    """A task that reads a generation, as an agent would: ``ids`` and ``chunks`` are what it has by now."""

    def __init__(self, pool: Pool, wanted: GenerateRequest) -> None:
        self.chunks: list[TokenChunk] = []
        self.task = asyncio.ensure_future(self._read(pool, wanted))

    async def _read(self, pool: Pool, wanted: GenerateRequest) -> list[TokenChunk]:
        async with aclosing(pool.generate(wanted)) as chunks:
            async for chunk in chunks:
                self.chunks.append(chunk)
        return self.chunks

    @property
    def ids(self) -> list[int]:
        return ids_of(self.chunks)

    async def cancelled(self) -> None:
        """The agent goes away."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    async def until(self, condition: Callable[[], Any]) -> None:
        """Raises: AssertionError, if that never happens by itself."""
        for _ in range(1000):
            if condition():
                return
            await asyncio.sleep(0)
        raise AssertionError(f"not so after {len(self.ids)} tokens")


def ids_of(chunks: list[TokenChunk]) -> list[int]:
    return [int(token) for chunk in chunks for token in chunk.ids]


def _chunk(ids: list[int], version: int, finished: Finished | None) -> TokenChunk:
    return TokenChunk(np.array(ids, np.int32), np.full(len(ids), -0.5, np.float32), version, finished)


async def _either(one: asyncio.Event, other: asyncio.Event) -> None:
    tasks = [asyncio.ensure_future(event.wait()) for event in (one, other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
