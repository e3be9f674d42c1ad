"""The endpoints of a pool: which there are, which can be used, what they have in common, and which one a session goes to."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from engine.affinity import choose
from engine.agreement import disagreement, in_common
from engine.clock import Clock, Pulse
from engine.endpoint import Endpoint
from engine.endpoint_client import Client, OpenClient
from engine.errors import EngineError, EngineUnavailable, ProbeFailed
from engine.types import EngineInfo
from engine.weights import Weights, not_brought_up, outdated, update_failed

REMEMBERED_SESSIONS = 20_000
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


class Replicas:
    """Endpoints by address, each with the task that watches it. ``changed`` beats when one is usable, or no longer is."""

    def __init__(self, open_client: OpenClient, options: PoolOptions, clock: Clock, changed: Pulse) -> None:
        self._open_client = open_client
        self._options = options
        self._clock = clock
        self._changed = changed
        self._endpoints: dict[str, Endpoint] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._homes: OrderedDict[str, str] = OrderedDict()
        self._agreed: EngineInfo | None = None
        """What the first endpoint that was fit to be used was found to be."""
        self.required: Weights | None = None
        """Older weights than these are not used."""

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(list(self._endpoints.values()))

    @property
    def usable(self) -> list[Endpoint]:
        """Where new generations may go, those that nothing speaks against first.

        Where none is healthy, what answers at all is better than nothing: a few requests that fail, or a server that is late since
        it has much to do, must not keep everybody else out. Unless it may be another server by now than was tried.
        """
        wanted = [endpoint for endpoint in self if not endpoint.draining and endpoint.client is not None]
        found = [endpoint for endpoint in wanted if endpoint.healthy]
        found = found or [each for each in wanted if each.answers and not each.unknown]
        return sorted(found, key=lambda endpoint: endpoint.suspect or endpoint.unknown)

    @property
    def info(self) -> EngineInfo | None:
        """What all that are known have in common; where none is any more, what the first one was. None before that one."""
        known = [info for endpoint in self if (info := endpoint.info) is not None]
        return in_common(known) if known else self._agreed

    async def wait_for_trials(self) -> None:
        """While no endpoint can be used and one was never tried: it may have come just now. ``start_wait_s`` at most."""
        until = self._clock.now() + self._options.start_wait_s
        while not self.usable and any(not (endpoint.tried or endpoint.draining) for endpoint in self):
            if (left := until - self._clock.now()) <= 0:
                return
            await self._changed.wait(self._clock, left)

    async def start(self, addresses: Sequence[str]) -> None:
        """Try the first endpoint, with which the others have to agree if it is there; then all.

        Raises: ProbeFailed, if all are there and none may be used.
        """
        for wanted in (addresses[:1], addresses):
            self.use(wanted)
            until = self._clock.now() + self._options.start_wait_s
            while not all(endpoint.tried for endpoint in self):
                left = until - self._clock.now()
                if left <= 0 and (self.info is not None or len(wanted) < len(addresses)):
                    break
                await self._changed.wait(self._clock, left if left > 0 else None)
        unfit = [endpoint.unfit for endpoint in self]
        if all(unfit):
            raise ProbeFailed("; ".join(map(str, unfit)))

    def use(self, addresses: Iterable[str]) -> None:
        """From now on these are the endpoints. One that is missing finishes its generations and goes."""
        wanted = dict.fromkeys(addresses)
        for address in wanted:
            if address not in self._endpoints:
                self._add(address)
        for endpoint in self:
            endpoint.draining = endpoint.address not in wanted
        self.drop_drained()
        self._changed.beat()

    def drop_drained(self) -> None:
        """Forget the endpoints that are no longer wanted and have nothing to finish."""
        for endpoint in self:
            if endpoint.draining and not endpoint.live:
                del self._endpoints[endpoint.address]
                self._watchers.pop(endpoint.address).cancel()
                closing = asyncio.create_task(endpoint.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    async def require(self, weights: Weights) -> None:
        """From now on an endpoint with older weights is not used before it was given these."""
        self.required = weights
        await asyncio.gather(*(endpoint.require_fit() for endpoint in self))

    async def adopt(self, weights: Weights) -> None:
        """The same of weights that another process put there: the endpoints are asked what they have. One that does not answer
        holds up no other, and its trials give them to it."""
        self.required = weights
        await asyncio.gather(*(endpoint.check() for endpoint in self if endpoint.client is not None))

    async def close(self) -> None:
        for watcher in self._watchers.values():
            watcher.cancel()
        await asyncio.gather(*self._watchers.values(), *self._closing, return_exceptions=True)
        for endpoint in self:
            await endpoint.close()

    def choose(self, session: str, endpoints: Iterable[Endpoint]) -> Endpoint:
        """The one of ``endpoints`` (at least one) that a generation of the session goes to; it is the session's from here on."""
        offered = {endpoint.address: endpoint for endpoint in endpoints}
        address = choose(session, {each.address: each.live for each in offered.values()}, self._homes.get(session))
        self._homes[session] = address
        self._homes.move_to_end(session)
        if len(self._homes) > REMEMBERED_SESSIONS:
            self._homes.popitem(last=False)
        return offered[address]

    def none_usable(self) -> EngineUnavailable:
        """The error that says of each endpoint why it cannot be used."""
        reasons = [
            f"{endpoint.address}: {endpoint.last_error or 'not tried yet'}"
            for endpoint in self
            if not endpoint.draining
        ]
        return EngineUnavailable(f"no engine can be used: {'; '.join(reasons)}")

    def _add(self, address: str) -> None:
        interval_s = self._options.check_interval_s
        endpoint = Endpoint(address, self._open, self._objection, self._changed.beat, interval_s, self._clock)
        self._endpoints[address] = endpoint
        self._watchers[address] = asyncio.create_task(endpoint.watch(), name=f"watch {address}")

    def _objection(self, found: EngineInfo) -> str | None:
        if self._agreed is None:
            self._agreed = found
        return disagreement(self._agreed, found) or outdated(self.required, found)

    async def _open(self, address: str) -> Client:
        """A client of an endpoint that has the required weights, or was given them. Raises: EngineError."""
        client = await self._open_client(address)
        required, why = self.required, outdated(self.required, client.info)
        if required is None or why is None:
            return client
        try:
            failure = update_failed(required, await client.control("update_weights", **required.arguments))
        except EngineError as error:
            raise not_brought_up(address, why, error) from error
        finally:
            await client.close()
        if failure is not None:
            raise not_brought_up(address, why, failure)
        return await self._open_client(address)
