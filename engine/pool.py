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
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

from engine.clock import Clock, LoopClock, Pulse
from engine.endpoint import Endpoint, EndpointState
from engine.endpoint_client import OpenClient
from engine.errors import EngineError, EngineUnavailable
from engine.failover import Trail
from engine.live import LiveGeneration
from engine.replicas import PoolOptions, Replicas
from engine.types import EngineInfo, GenerateRequest, TokenChunk
from engine.weights import Weights

__all__ = ["EndpointState", "Pool", "PoolOptions"]


class Pool:
    """``async with Pool(addresses, open_client) as pool``: all of them are watched meanwhile."""

    def __init__(
        self,
        addresses: Sequence[str],
        open_client: OpenClient,
        options: PoolOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._addresses = tuple(addresses)
        self._options = options or PoolOptions()
        self._clock = clock or LoopClock()
        self._changed = Pulse()
        """An endpoint came, went or was checked, or the hold was released."""
        self._left = Pulse()
        """A generation is no longer running anywhere."""
        self._replicas = Replicas(open_client, self._options, self._clock, self._changed)
        self._running: set[LiveGeneration] = set()
        self._held = False

    async def __aenter__(self) -> Self:
        """Raises: ProbeFailed, if all endpoints are there and none may be used. One that is not there is tried again and again."""
        try:
            await self._replicas.start(self._addresses)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Watch no endpoint any more, and close the connections."""
        await self._replicas.close()

    @property
    def info(self) -> EngineInfo:
        """What all endpoints have in common. It stays known when none is left. Raises: EngineUnavailable, before any was found."""
        info = self._replicas.info
        if info is None:
            raise self._replicas.none_usable()
        return info

    @property
    def held(self) -> bool:
        """Whether generations wait for a release."""
        return self._held

    def endpoints(self) -> tuple[EndpointState, ...]:
        """All of them, those that are being drained too."""
        return tuple(endpoint.state for endpoint in self._replicas)

    def use(self, addresses: Iterable[str]) -> None:
        """From now on these are the endpoints. One that is missing finishes its generations and goes."""
        self._replicas.use(addresses)

    async def connect(self) -> None:
        """Raises: EngineUnavailable, if no endpoint would take a generation. During a hold none has to be there."""
        if self._held and self._replicas.info is not None:
            return
        await self._replicas.wait_for_trials()
        for endpoint in self._replicas.usable:
            await endpoint.settled()
            if endpoint not in self._replicas.usable:
                continue
            epoch = endpoint.breaker.epoch
            try:
                await endpoint.connect()
            except EngineError as error:
                endpoint.failed(error, epoch)
            else:
                return
        raise self._replicas.none_usable()

    async def check_ready(self) -> None:
        """Ask all that are used. Raises: EngineUnavailable, if none is left. During a hold they may be busy with new weights."""
        if self._held and self._replicas.info is not None:
            return
        await asyncio.gather(*(endpoint.check() for endpoint in self._replicas.usable))
        if not self._replicas.usable:
            raise self._replicas.none_usable()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Chunks until the one with ``finished``, of as many segments as it takes. Closing the iterator cancels the generation.

        Raises: EngineError.
        """
        live = LiveGeneration(request)
        progress = live.progress
        trail = Trail(progress, self._options.max_failovers, self._options.failover_wait_s)
        while not progress.finished:
            reason = progress.ended()
            if reason is not None:
                yield progress.last_chunk(reason)
                return
            trail.check_continuable()
            endpoint = await self._placed(live, trail)
            epoch = endpoint.breaker.epoch
            try:
                async with aclosing(live.segment(endpoint)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except EngineError as error:
                endpoint.failed(error, epoch)
                trail.failed(error, endpoint.address, epoch)
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
        self._left.beat()  # a hold that still waits is over

    async def control(self, operation: str, **arguments: Any) -> dict[str, dict[str, Any] | EngineError]:
        """One control operation on every endpoint: by address, its answer or its failure."""

        async def ask(endpoint: Endpoint) -> dict[str, Any] | EngineError:
            try:
                return await endpoint.control(operation, **arguments)
            except EngineError as error:
                return error

        endpoints = list(self._replicas)
        answers = await asyncio.gather(*(ask(endpoint) for endpoint in endpoints))
        return {endpoint.address: answer for endpoint, answer in zip(endpoints, answers, strict=True)}

    async def control_at(self, address: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """The same on one endpoint. Raises: EngineError."""
        for endpoint in self._replicas:
            if endpoint.address == address:
                return await endpoint.control(operation, **arguments)
        raise EngineUnavailable(f"there is no endpoint {address} any more")

    @property
    def weights(self) -> Weights | None:
        """What ``require`` was given last."""
        return self._replicas.required

    async def require(self, weights: Weights) -> None:
        """These weights are in force: an endpoint with older ones is not used before it was given them, which its trials do."""
        await self._replicas.require(weights)

    async def adopt(self, weights: Weights) -> None:
        """The same of weights that another process has put there: what is known of the endpoints is older."""
        await self._replicas.adopt(weights)

    async def _placed(self, live: LiveGeneration, trail: Trail) -> Endpoint:
        """An endpoint for the next segment, which counts the generation as its own from here on. Raises: EngineError."""
        while True:
            if self._held:
                await self._changed.wait(self._clock)
                trail.held()
            elif candidates := self._candidates(trail):
                endpoint = self._replicas.choose(live.request.session or live.request.request_id, candidates)
                if endpoint.unknown:
                    await endpoint.settled()
                    continue
                endpoint.live += 1
                self._running.add(live)
                trail.placed()
                return endpoint
            elif self._worth_waiting(trail) and (left := trail.patience_left(self._clock.now())):
                await self._changed.wait(self._clock, left)
            else:
                raise self._given_up(trail)

    def _candidates(self, trail: Trail) -> list[Endpoint]:
        """Where the next segment may go. To an endpoint that is suspect only goes who would not wait for another."""
        usable = [each for each in self._replicas.usable if not trail.avoids(each.address, each.breaker.epoch)]
        sure = [endpoint for endpoint in usable if not (endpoint.suspect or endpoint.unknown)]
        return sure if sure or trail.patient else usable

    def _worth_waiting(self, trail: Trail) -> bool:
        """Whether there is an endpoint at all that could still take the generation."""
        wanted = [each for each in self._replicas if not each.draining]
        return not wanted or any(not trail.avoids(each.address, each.breaker.epoch) for each in wanted)

    def _given_up(self, trail: Trail) -> EngineError:
        if trail.error is None:
            return self._replicas.none_usable()
        if not trail.patient or not self._worth_waiting(trail):
            return trail.error
        return EngineUnavailable(f"{trail.error}; no engine could go on within {trail.wait_s:g} s")

    def _leave(self, live: LiveGeneration, endpoint: Endpoint) -> None:
        endpoint.live -= 1
        self._running.discard(live)
        self._left.beat()
        if endpoint.draining:
            self._replicas.drop_drained()
