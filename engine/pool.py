"""Many endpoints as one ``Engine``: a session stays where its KV cache is, and no generation is lost with the server that ran it.

    generate ──► held? wait ──► pick an endpoint ──► a segment there ──► complete? done
                     ▲                                    │ it broke off, or was cut
                     └────── prompt + the ids so far ─────┘

A generation that breaks off after n tokens goes on from them (``continuation``): on another endpoint, or on the same one once it
has passed a check again, which is waited for. One that has no tokens yet only tries the other endpoints: who asked has not been
told anything, and can be given a proper error at once. What an engine refuses is refused, and what contradicts the contract is no
token to go on from; both are passed on as they are.

*Hold* admits no generation and cuts those that run, at a token, after a deadline; *release* lets all go on. That is how weights are
swapped under agents that do not notice. The deadlines of a generation run in its client, segment by segment, so that time on hold
counts towards none.

A pool belongs to one event loop, and there is no await between picking an endpoint and being counted there.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from engine.affinity import choose
from engine.agreement import disagreement, in_common
from engine.clock import Clock, LoopClock, Pulse
from engine.endpoint import Endpoint, EndpointState, OpenClient
from engine.errors import (
    EngineError,
    EngineFailed,
    EngineProtocolError,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
    ProbeFailed,
)
from engine.live import LiveGeneration
from engine.types import EngineInfo, GenerateRequest, TokenChunk

__all__ = ["EndpointState", "Pool", "PoolOptions"]

REMEMBERED_SESSIONS = 100_000
"""Sessions whose endpoint is remembered; the least recently served are forgotten, and are placed as new ones when they return."""


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Times in seconds."""

    check_interval_s: float = 5.0
    """Between two health checks of an endpoint."""
    failover_wait_s: float = 60.0
    """How long a generation that broke off, or was on hold, waits for an endpoint to go on."""
    max_failovers: int = 3
    """Failures after which a generation is given up: what it asks for may be what kills the engine."""
    cut_grace_s: float = 1.0
    """For the last tokens of a generation that is cut to arrive."""
    start_wait_s: float = 5.0
    """For the first endpoint to be tried at the start, and then for the others. Who takes longer joins later."""


@dataclass(slots=True)
class _Trail:
    """What happened to one generation so far. ``avoided``: endpoints that are not tried again."""

    error: EngineError | None = None
    failures: int = 0
    since: float | None = None
    """When it began to wait for an endpoint."""
    patient: bool = False
    """It was on hold: it waits for an endpoint though it has no tokens."""
    avoided: set[str] = field(default_factory=set)


class Pool:
    """``async with Pool(addresses, open_client) as pool``: all of them are watched meanwhile."""

    def __init__(
        self,
        addresses: Sequence[str],
        open_client: OpenClient,
        options: PoolOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._open_client = open_client
        self._options = options or PoolOptions()
        self._clock = clock or LoopClock()
        self._endpoints: dict[str, Endpoint] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._homes: OrderedDict[str, str] = OrderedDict()
        self._running: set[LiveGeneration] = set()
        self._held = False
        self._changed = Pulse()
        """An endpoint came, went or was checked, or the hold was released."""
        self._left = Pulse()
        """A generation is no longer running anywhere."""
        self._addresses = tuple(addresses)
        self._agreed: EngineInfo | None = None
        """What the first endpoint that was fit to be used was found to be."""

    async def __aenter__(self) -> Self:
        """Raises: ProbeFailed, if all endpoints are there and none may be used."""
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        for watcher in self._watchers.values():
            watcher.cancel()
        await asyncio.gather(*self._watchers.values(), *self._closing, return_exceptions=True)
        for endpoint in self._endpoints.values():
            await endpoint.close()

    @property
    def info(self) -> EngineInfo:
        """What all endpoints have in common. Raises: EngineUnavailable, before any was found fit to be used."""
        known = self._known()
        if not known:
            raise EngineUnavailable(self._why_none())
        return in_common(known)

    @property
    def held(self) -> bool:
        """Whether generations wait for a release."""
        return self._held

    def endpoints(self) -> tuple[EndpointState, ...]:
        """All of them, those that are being drained too."""
        return tuple(endpoint.state for endpoint in self._endpoints.values())

    def use(self, addresses: Iterable[str]) -> None:
        """From now on these are the endpoints. One that is missing finishes its generations and goes."""
        wanted = dict.fromkeys(addresses)
        for address in wanted:
            if address not in self._endpoints:
                self._add(address)
            self._endpoints[address].draining = False
        for address, endpoint in self._endpoints.items():
            endpoint.draining = address not in wanted
        self._drop_drained()
        self._changed.beat()

    async def connect(self) -> None:
        """Raises: EngineUnavailable, if no endpoint would take a generation. While they are held, none has to be there."""
        if self._held and self._known():
            return
        usable = [endpoint for endpoint in self._endpoints.values() if endpoint.healthy and not endpoint.draining]
        for endpoint in sorted(usable, key=lambda endpoint: endpoint.suspect):
            epoch = endpoint.breaker.epoch
            try:
                assert endpoint.client is not None
                await endpoint.client.connect()
            except EngineError as error:
                endpoint.failed(error, epoch)
            else:
                return
        raise EngineUnavailable(self._why_none())

    async def check_ready(self) -> None:
        """Ask all that are used. Raises: EngineUnavailable, if none is left."""
        await asyncio.gather(*(endpoint.check() for endpoint in self._endpoints.values() if endpoint.healthy))
        if not any(endpoint.state.healthy for endpoint in self._endpoints.values()):
            raise EngineUnavailable(self._why_none())

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Chunks until the one with ``finished``, of as many segments as it takes. Closing the iterator cancels the generation.

        Raises: EngineError.
        """
        live = LiveGeneration(request)
        trail = _Trail()
        progress = live.progress
        while not progress.finished:
            reason = progress.ended()
            if reason is not None:
                yield progress.last_chunk(reason)
                return
            endpoint = await self._placed(live, trail)
            epoch = endpoint.breaker.epoch
            try:
                async with aclosing(live.segment(endpoint)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except EngineError as error:
                endpoint.failed(error, epoch)
                self._judge(error, endpoint, live, trail)
            finally:
                self._leave(live, endpoint)

    async def hold(self, deadline_s: float) -> None:
        """Admit nothing, let what runs go on for ``deadline_s`` at most, then cut the rest. Returns when nothing runs any more, or
        when the hold was released meanwhile."""
        self._held = True
        until = self._clock.now() + deadline_s
        while self._held and self._running and (left := until - self._clock.now()) > 0:
            await self._left.wait(self._clock, left)
        if self._held:
            await asyncio.gather(*(live.cut(self._clock, self._options.cut_grace_s) for live in self._running))

    def release(self) -> None:
        """Admit again; what was cut goes on."""
        self._held = False
        self._changed.beat()

    async def control(self, operation: str, **arguments: Any) -> dict[str, dict[str, Any] | EngineError]:
        """One control operation on every endpoint: by address, its answer or its failure."""

        async def ask(endpoint: Endpoint) -> dict[str, Any] | EngineError:
            try:
                return await endpoint.control(operation, **arguments)
            except EngineError as error:
                return error

        endpoints = list(self._endpoints.values())
        answers = await asyncio.gather(*(ask(endpoint) for endpoint in endpoints))
        return {endpoint.address: answer for endpoint, answer in zip(endpoints, answers, strict=True)}

    async def refresh(self) -> None:
        """Ask every endpoint for its weight version. One that does not answer keeps the one it is known by."""
        await self.control("stats")

    def _add(self, address: str) -> None:
        endpoint = Endpoint(
            address, self._open_client, self._objection, self._changed.beat, self._options.check_interval_s, self._clock
        )
        self._endpoints[address] = endpoint
        self._watchers[address] = asyncio.create_task(endpoint.watch(), name=f"watch {address}")

    def _drop_drained(self) -> None:
        for address, endpoint in list(self._endpoints.items()):
            if endpoint.draining and not endpoint.live:
                del self._endpoints[address]
                self._watchers.pop(address).cancel()
                closing = asyncio.create_task(endpoint.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    async def _start(self) -> None:
        """Try the first endpoint, which the others have to agree with if it is there; then all."""
        for addresses in (self._addresses[:1], self._addresses):
            self.use(addresses)
            until = self._clock.now() + self._options.start_wait_s
            while not all(endpoint.tried for endpoint in self._endpoints.values()):
                left = until - self._clock.now()
                if left <= 0 and (self._known() or addresses != self._addresses):
                    break
                await self._changed.wait(self._clock, left if left > 0 else None)
        unfit = [endpoint.unfit for endpoint in self._endpoints.values() if endpoint.unfit is not None]
        if unfit and len(unfit) == len(self._endpoints):
            raise ProbeFailed("; ".join(map(str, unfit)))

    def _known(self) -> list[EngineInfo]:
        return [info for endpoint in self._endpoints.values() if (info := endpoint.info) is not None]

    def _objection(self, found: EngineInfo) -> str | None:
        if self._agreed is None:
            self._agreed = found
        return disagreement(self._agreed, found)

    def _why_none(self) -> str:
        """Why no endpoint can be used."""
        reasons = [
            f"{endpoint.address}: {endpoint.last_error or 'not tried yet'}"
            for endpoint in self._endpoints.values()
            if not endpoint.draining
        ]
        return f"no endpoint can be used ({'; '.join(reasons)})" if reasons else "no endpoint is named"

    async def _placed(self, live: LiveGeneration, trail: _Trail) -> Endpoint:
        """An endpoint for the next segment, which counts the generation as its own from here on. Raises: EngineError."""
        while True:
            if self._held:
                await self._changed.wait(self._clock)
                trail.patient, trail.since = True, None
                continue
            endpoint = self._picked(live, trail)
            if endpoint is not None:
                endpoint.live += 1
                self._running.add(live)
                trail.since = None
                return endpoint
            await self._hope(live, trail)

    def _picked(self, live: LiveGeneration, trail: _Trail) -> Endpoint | None:
        usable = {
            address: endpoint
            for address, endpoint in self._endpoints.items()
            if endpoint.healthy and not endpoint.draining and address not in trail.avoided
        }
        sure = {address: endpoint for address, endpoint in usable.items() if not endpoint.suspect}
        if not sure and live.progress.count == 0 and not trail.patient:
            sure = usable
        if not sure:
            return None
        session = live.request.session or live.request.request_id
        address = choose(session, {address: each.live for address, each in sure.items()}, self._homes.get(session))
        self._remember(session, address)
        return sure[address]

    def _remember(self, session: str, address: str) -> None:
        self._homes[session] = address
        self._homes.move_to_end(session)
        if len(self._homes) > REMEMBERED_SESSIONS:
            self._homes.popitem(last=False)

    async def _hope(self, live: LiveGeneration, trail: _Trail) -> None:
        """Wait for an endpoint to become usable. Raises: EngineError, if that is not worth while, or takes too long."""
        if not live.progress.count and not trail.patient:
            raise trail.error or EngineUnavailable(self._why_none())
        now = self._clock.now()
        trail.since = now if trail.since is None else trail.since
        left = trail.since + self._options.failover_wait_s - now
        if left <= 0:
            waited = f"no endpoint could go on with it within {self._options.failover_wait_s:g} s"
            raise EngineFailed(f"{trail.error}; {waited}") if trail.error else EngineUnavailable(self._why_none())
        await self._changed.wait(self._clock, left)

    def _judge(self, error: EngineError, endpoint: Endpoint, live: LiveGeneration, trail: _Trail) -> None:
        """After a failure: whether the generation may go on. Raises: EngineError, if it may not."""
        count = live.progress.count
        if isinstance(error, EngineProtocolError) or (isinstance(error, EngineRejected) and count == 0):
            raise error
        if isinstance(error, EngineRejected):
            raise EngineFailed(f"the rest of a generation that broke off was refused: {error}") from error
        trail.error = error
        trail.failures += 1
        if count == 0 or isinstance(error, EngineTimeout):
            trail.avoided.add(endpoint.address)
        if trail.failures > self._options.max_failovers:
            raise error

    def _leave(self, live: LiveGeneration, endpoint: Endpoint) -> None:
        endpoint.live -= 1
        self._running.discard(live)
        self._left.beat()
        if endpoint.draining and not endpoint.live:
            self._drop_drained()
