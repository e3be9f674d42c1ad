"""A weight update over the endpoints of a pool that is on hold.

    each endpoint:  swap ─► refused, since requests are live there? wait, again ─► does it say the new version? ─┐
    the pool:       one that failed is taken out of service ◄─ the new weights are required ◄────────────────────┘

Nothing of the pool's own is live during a hold, but others may have requests there (a probe, another server), and what was cut may
take a moment to end. Models refuse to swap under live requests, so a token is never sampled by weights of which it does not say the
version; they forget their whole KV cache with the old weights.

An endpoint that failed still has the old weights. It serves nobody until it was given the new ones, at one of its trials. Where all
failed, nothing has changed, and the old weights go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.clock import Clock, LoopClock
from engine.endpoint import EndpointState
from engine.errors import EngineError, EngineFailed
from engine.weights import Weights, update_failed

IDLE_WAIT_S = 10.0
"""For requests to end that are live on an engine though the pool is on hold."""

POLL_S = 0.05
"""Between two tries while they are."""


class Pooled(Protocol):
    """``engine.pool.Pool``, as far as an update needs it."""

    def endpoints(self) -> tuple[EndpointState, ...]: ...

    async def control_at(self, address: str, operation: str, **arguments: Any) -> dict[str, Any]: ...

    async def require(self, weights: Weights) -> None: ...


@dataclass(frozen=True, slots=True)
class EndpointUpdate:
    """What became of one endpoint. ``weight_version``: what it has now, as far as is known."""

    address: str
    weight_version: int | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What became of an update."""

    weights: Weights
    endpoints: tuple[EndpointUpdate, ...]

    @property
    def ok(self) -> bool:
        """Whether the new weights are in force: an endpoint has them."""
        return any(endpoint.error is None for endpoint in self.endpoints)

    @property
    def failures(self) -> str:
        """Which endpoints failed, and why."""
        return "; ".join(f"{each.address}: {each.error}" for each in self.endpoints if each.error is not None)


async def newest_weights(pool: Pooled) -> Weights | None:
    """The newest that an endpoint says it has; of one version, those that say where they are. None where nobody answers."""
    states = [state for state in pool.endpoints() if not state.draining]
    answers = await asyncio.gather(*(_stats(pool, state.address) for state in states))
    found = [Weights(each["weight_version"], each.get("path") or None) for each in answers if "weight_version" in each]
    return max(found, key=lambda weights: (weights.version, weights.path is not None), default=None)


async def swap_weights(pool: Pooled, weights: Weights, clock: Clock | None = None) -> UpdateReport:
    """Give all endpoints of a pool, which must be on hold, the new weights. Failures are in the report."""
    clock = clock or LoopClock()
    states = [state for state in pool.endpoints() if not state.draining]
    failures = await asyncio.gather(*(_swap(pool, state.address, weights, clock) for state in states))
    report = UpdateReport(weights, tuple(_outcomes(states, failures, weights)))
    if report.ok:
        await pool.require(weights)
    return report


def _outcomes(
    states: Sequence[EndpointState], failures: Sequence[str | None], weights: Weights
) -> list[EndpointUpdate]:
    return [
        EndpointUpdate(state.address, weights.version if failure is None else state.weight_version, failure)
        for state, failure in zip(states, failures, strict=True)
    ]


async def _swap(pool: Pooled, address: str, weights: Weights, clock: Clock) -> str | None:
    """Why one endpoint did not take the weights; None if it did."""
    until = clock.now() + IDLE_WAIT_S
    while True:
        try:
            return update_failed(weights, await pool.control_at(address, "update_weights", **weights.arguments))
        except EngineFailed as error:
            if clock.now() >= until or not await _is_busy(pool, address):
                return str(error)
        except EngineError as error:
            return str(error)
        await clock.sleep(POLL_S)


async def _is_busy(pool: Pooled, address: str) -> bool:
    return bool((await _stats(pool, address)).get("live"))


async def _stats(pool: Pooled, address: str) -> dict[str, Any]:
    """What an endpoint says of itself; nothing, where it does not answer."""
    try:
        return await pool.control_at(address, "stats")
    except EngineError:
        return {}
