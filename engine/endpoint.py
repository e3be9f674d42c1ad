"""One endpoint of the pool: what is known of it, whether it is used, and the task that watches it.

    trial    a probe: what does the server there speak now, and are its tokens fit to be trained on. It decides at the start and
             when the endpoint was given up, so a server that came back with another model, or still lies, is not used
    check    ``stats``, every few seconds, and at once after a generation failed there or the connection was lost; it tells the
             weight version too, and whether it is still the model that was tried (``identity``). If not, a trial is due

Between a failed generation and the next check the endpoint is ``suspect``: only who has nowhere else to go is sent there. Between a
lost connection and the next check it is ``unknown``: another server may be behind the next one, so nothing is sent there, and who
has nowhere else to go waits (``settled``).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from engine.breaker import Breaker, BreakerState
from engine.clock import Clock, Pulse
from engine.endpoint_client import Client, OpenClient
from engine.errors import EngineError, EngineProtocolError, EngineRejected, EngineUnavailable, ProbeFailed
from engine.identity import INSTANCE, Identity, Known, contradiction, difference, identity_of
from engine.types import EngineInfo, TokenChunk

logger = logging.getLogger("rollserve.engine")

JITTER = 0.2
"""Part of a pause by which it is longer or shorter, so that many processes do not ask at the same moment."""


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
    _known: Known | None = None
    """None: somebody else was found there since."""
    _news: Pulse = field(default_factory=Pulse)
    """For the task that watches it."""
    _decided: Pulse = field(default_factory=Pulse)
    """A check or a trial has ended."""

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
    def unknown(self) -> bool:
        """Whether another server may be there than the one that was tried."""
        if self.client is None:
            return False
        return self._known is None or self._known.losses != self.client.losses

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
                if not self.unknown:
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
        losses = 0 if self.client is None else self.client.losses
        try:
            answer = await self.control("stats")
        except EngineError as error:
            self._note(error, epoch, certain=isinstance(error, EngineUnavailable) or self.unknown)
        else:
            if epoch == self.breaker.epoch and self.healthy:
                await self._recognise(identity_of(answer), losses)
        self._decided.beat()

    async def _recognise(self, identity: Identity, losses: int) -> None:
        """It says that it is so, over the connection of that number. A model that does not say that it was not started anew may
        have been, behind a new connection."""
        assert self._known is not None
        why = difference(self._known.identity, identity)
        if why is None and self.unknown and INSTANCE not in identity:
            why = "its connection was lost"
        if why is not None:
            self._found_another(why)
            return
        self._known = Known(identity, losses)
        await self.require_fit()
        if self.suspect:
            self.suspect = False
        self.changed()

    def _found_another(self, why: str) -> None:
        """Use it no more until a trial, which is due at once, has said what it is now."""
        self.last_error = f"the endpoint {self.address} is not the one that was tried: {why}"
        logger.warning("%s; it is tried again", self.last_error)
        self._known = None
        self.breaker.reopen(self.clock.now())
        self._news.beat()
        self.changed()

    async def settled(self) -> None:
        """Return when it is known who is there, or that nobody is; at once where there was no doubt of it."""
        while self.unknown and not self._given_up:
            await self._decided.wait(self.clock)

    @property
    def _given_up(self) -> bool:
        """Whether no check or trial is going on or due."""
        return self.breaker.state is BreakerState.OPEN and self.breaker.due_in(self.clock.now()) > 0

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
        self._decided.beat()
        if client is not None:
            await client.close()

    async def _try(self) -> None:
        """Probe it, and use it if it is fit."""
        self.breaker.begin_trial()
        try:
            client = await self.open_client(self.address)
            try:
                known = await self._examine(client)
            except BaseException:
                await client.close()
                raise
        except EngineError as error:
            self.unfit = error if isinstance(error, ProbeFailed) else None
            self._note(error, self.breaker.epoch, certain=True)
        except Exception as error:  # whatever it is, the endpoint has to be tried again
            logger.exception("the trial of %s broke", self.address)
            self._note(EngineUnavailable(f"the trial broke: {error!r}"), self.breaker.epoch, certain=True)
        else:
            await self._use(client, known)
        self.tried = True
        self._decided.beat()
        self.changed()

    async def _examine(self, client: Client) -> Known:
        """Who a probed server says that it is. Raises: EngineError, if it cannot be used."""
        reason = self.objection(client.info)
        if reason is None:
            losses = client.losses
            identity = identity_of(await client.control("stats"))
            reason = contradiction(client.info, identity)
        if reason is not None:
            raise ProbeFailed(f"the endpoint {self.address} is not used: {reason}")
        return Known(identity, losses)

    async def _use(self, client: Client, known: Known) -> None:
        before, self.client, self._known = self.client, client, known
        client.on_loss(self._news.beat)
        self.unfit, self.suspect, self.answers = None, False, True
        self.weight_version = client.info.weight_version
        self.breaker.close()
        logger.info("the endpoint %s is used (weight version %d)", self.address, self.weight_version)
        if before is not None:
            await before.close()

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
            self._decided.beat()
            self.changed()


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(1 - JITTER, 1 + JITTER)
