"""One endpoint of the pool: what is known of it, whether it is used, and the task that watches it.

    trial    a probe: what does the server there speak now, and are its tokens fit to be trained on. It decides at the start and
             when the endpoint was given up, so a server that came back with another model, or still lies, is not used
    check    ``stats``, every few seconds, and at once after a generation failed there; it tells the weight version too

Between a failed generation and the next check the endpoint is ``suspect``: only who has nowhere else to go is sent there.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from engine.breaker import Breaker, BreakerState
from engine.clock import Clock, Pulse
from engine.errors import EngineError, EngineProtocolError, EngineRejected, EngineUnavailable, ProbeFailed
from engine.types import EngineInfo, GenerateRequest, TokenChunk

logger = logging.getLogger("rollserve.engine")

JITTER = 0.2
"""Part of a pause by which it is longer or shorter, so that many processes do not ask at the same moment."""


class Client(Protocol):
    """One endpoint as the pool talks to it: ``engine.client.TritonClient``."""

    @property
    def info(self) -> EngineInfo: ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]: ...

    async def connect(self) -> None: ...

    async def control(self, operation: str, **arguments: Any) -> dict[str, Any]: ...

    async def stop(self, request_id: str) -> None: ...

    def abort(self, request_id: str) -> None: ...

    async def close(self) -> None: ...


OpenClient = Callable[[str], Awaitable[Client]]
"""Probes the server at an address and gives a client for it. Raises: EngineError."""

Objection = Callable[[EngineInfo], str | None]
"""Why an endpoint that was found to be so cannot be used; None if it can."""


@dataclass(frozen=True, slots=True)
class EndpointState:
    """An endpoint, for people and for whoever updates weights."""

    address: str
    healthy: bool
    """Whether new generations go there."""
    draining: bool
    """It is no longer wanted, and goes when its last generation has ended."""
    live: int
    """Generations of this process that run there."""
    weight_version: int | None
    """As far as is known; None before the first trial."""
    last_error: str | None
    """The last failure; not cleared by what went well after it."""
    breaker: BreakerState
    failures: int = 0
    """Generations, checks and trials that failed there."""


@dataclass(eq=False, slots=True)
class Endpoint:
    """``changed`` is called whenever somebody who waits may find it useful or gone."""

    address: str
    open_client: OpenClient
    objection: Objection
    changed: Callable[[], None]
    check_interval_s: float
    clock: Clock
    breaker: Breaker = field(default_factory=Breaker)
    client: Client | None = None
    live: int = 0
    draining: bool = False
    suspect: bool = False
    tried: bool = False
    """Whether a first trial has ended, well or not."""
    unfit: ProbeFailed | None = None
    """Why the last trial refused what it found there."""
    answers: bool = False
    """Whether somebody is there, however it fares: the last word was not that nobody is, nor that what comes is wrong."""
    weight_version: int | None = None
    last_error: str | None = None
    failures: int = 0
    _news: Pulse = field(default_factory=Pulse)

    @property
    def info(self) -> EngineInfo | None:
        """As the last trial found it, with the weight version as it is known by now."""
        if self.client is None:
            return None
        known = self.client.info
        return known if self.weight_version is None else replace(known, weight_version=self.weight_version)

    @property
    def healthy(self) -> bool:
        return self.client is not None and self.breaker.state is BreakerState.CLOSED

    @property
    def state(self) -> EndpointState:
        return EndpointState(
            self.address,
            self.healthy and not self.draining,
            self.draining,
            self.live,
            self.weight_version,
            self.last_error,
            self.breaker.state,
            self.failures,
        )

    async def watch(self) -> None:
        """Try, check, and try again, until it is cancelled."""
        while True:
            if self.breaker.state is BreakerState.CLOSED:
                await self._news.wait(self.clock, _jittered(self.check_interval_s))
                if self.healthy:
                    await self.check()
            else:
                pause_s = self.breaker.due_in(self.clock.now())
                if pause_s:
                    await self.clock.sleep(_jittered(pause_s))
                await self._try()

    async def check(self) -> None:
        """Ask for its stats. A server that does not answer at all is left at once, one that is late after a few times."""
        epoch = self.breaker.epoch
        try:
            await self.control("stats")
        except EngineError as error:
            self._note(error, epoch, certain=isinstance(error, EngineUnavailable))
            return
        await self.require_fit()
        if self.suspect:
            self.suspect = False
            self.changed()

    async def require_fit(self) -> None:
        """Use it no more, until a trial finds it fit, if it is known to have become one that cannot be used."""
        reason = None if self.info is None else self.objection(self.info)
        if reason is not None:
            self._note(
                EngineUnavailable(f"the endpoint {self.address} is not used: {reason}"),
                self.breaker.epoch,
                certain=True,
            )
            await self.close()
            self._news.beat()

    async def connect(self) -> None:
        """Raises: EngineUnavailable."""
        await self._connected().connect()

    async def control(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """One control operation there. Raises: EngineError."""
        answer = await self._connected().control(operation, **arguments)
        if isinstance(answer.get("weight_version"), int):
            self.weight_version = answer["weight_version"]
        return answer

    def _connected(self) -> Client:
        if self.client is None:
            raise EngineUnavailable(self.last_error or f"{self.address} has not been reached yet")
        return self.client

    def gave(self, chunk: TokenChunk) -> None:
        """A chunk came from there. Only a generation that came to its end speaks for the endpoint: one that lies may begin well."""
        self.weight_version = chunk.weight_version
        if chunk.finished is not None:
            self.breaker.succeeded()

    def failed(self, error: EngineError, epoch: int) -> None:
        """A generation that began in ``epoch`` of the breaker failed there. A refused one says nothing about the endpoint."""
        if isinstance(error, EngineRejected) or epoch != self.breaker.epoch:
            return
        self.suspect = True
        self._note(error, epoch)
        self._news.beat()

    async def close(self) -> None:
        client, self.client = self.client, None
        if client is not None:
            await client.close()

    async def _try(self) -> None:
        """Probe it, and use it if it is fit."""
        self.breaker.begin_trial()
        try:
            client = await self.open_client(self.address)
            reason = self.objection(client.info)
            if reason is not None:
                await client.close()
                raise ProbeFailed(f"the endpoint {self.address} is not used: {reason}")
        except EngineError as error:
            self.unfit = error if isinstance(error, ProbeFailed) else None
            self._note(error, self.breaker.epoch, certain=True)
        except Exception as error:  # whatever it is, the endpoint has to be tried again
            logger.exception("the trial of %s broke", self.address)
            self._note(EngineUnavailable(f"the trial broke: {error!r}"), self.breaker.epoch, certain=True)
        else:
            await self._use(client)
        self.tried = True
        self.changed()

    async def _use(self, client: Client) -> None:
        await self.close()
        self.client, self.unfit, self.suspect, self.answers = client, None, False, True
        self.weight_version = client.info.weight_version
        self.breaker.close()
        logger.info("the endpoint %s is used (weight version %d)", self.address, self.weight_version)

    def _note(self, error: EngineError, epoch: int, *, certain: bool = False) -> None:
        if epoch != self.breaker.epoch:
            return
        self.failures += 1
        text, before = str(error), self.breaker.state
        self.breaker.failed(self.clock.now(), certain=certain)
        self.answers = not certain and not isinstance(error, EngineProtocolError)
        if self.last_error != text or before is BreakerState.CLOSED:
            logger.warning("the endpoint %s: %s (%s)", self.address, text, self.breaker.state)
        self.last_error = text
        if self.breaker.state is not before:
            self.changed()


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(1 - JITTER, 1 + JITTER)
