"""The hold on one worker's generations: in whose name it is, and when it ends by itself.

    free ──hold──► draining ──nothing runs, or the deadline: cut──► held ──release, or the lease is over──► free

An *epoch* is a random name of one pause. Who holds renews and releases by it, so a call that comes late, for a pause that is over,
does nothing to the next one. There is one who holds; a hold under another name is of the one who came after it, and takes the place
of what that one left. A holder that died renews nothing: its *lease* ends the pause. Turns that come meanwhile wait, in the pool or
in the admission's queue, and their clients get heartbeats.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from adapter.admission import Admission
from adapter.errors import Conflict
from adapter.logs import event
from engine.endpoint import EndpointState
from engine.types import Engine
from engine.updating import Pooled
from engine.weights import Weights

logger = logging.getLogger("rollserve.engine")


@runtime_checkable
class Holdable(Pooled, Engine, Protocol):
    """An engine that can be held and given new weights: ``engine.pool.Pool``."""

    @property
    def weights(self) -> Weights | None: ...

    def endpoints(self) -> tuple[EndpointState, ...]: ...

    async def hold(self, deadline_s: float) -> None: ...

    def release(self) -> None: ...

    async def adopt(self, weights: Weights) -> None: ...


@dataclass(frozen=True, slots=True)
class Hold:
    """``deadline_s``: how long what runs may go on before it is cut; ``lease_s``: when the hold ends if nobody renews it;
    ``for_update``: nobody asked for it, it is there for an update of the coordinator's."""

    epoch: str
    deadline_s: float
    lease_s: float
    for_update: bool = False


class Pause:
    """Whether this worker's generations are on hold. It belongs to one event loop."""

    def __init__(self, engines: Sequence[Holdable], admission: Admission) -> None:
        self._engines = tuple(engines)
        self._admission = admission
        self._lease: asyncio.TimerHandle | None = None
        self.epoch: str | None = None
        """Of the pause that is in force."""
        self.for_update = False
        """Whether that pause lasts as long as an update and no longer."""

    @property
    def lease_left_s(self) -> float:
        """Seconds until the pause ends by itself; 0 without one."""
        return 0.0 if self._lease is None else max(0.0, self._lease.when() - asyncio.get_running_loop().time())

    async def hold(self, hold: Hold) -> None:
        """Until nothing runs any more. Again it renews the lease, and the shorter deadline counts.

        Raises: Conflict, if it ended before everything that ran had.
        """
        self.epoch, self.for_update = hold.epoch, hold.for_update
        self._admission.held = True
        self.renew(hold.epoch, hold.lease_s)
        await asyncio.gather(*(engine.hold(hold.deadline_s) for engine in self._engines))
        if self.epoch != hold.epoch:
            raise Conflict("the pause ended before everything that ran had")

    def renew(self, epoch: str, lease_s: float) -> bool:
        """Whether that pause is in force; then for so long from now."""
        if epoch != self.epoch:
            return False
        self._stop_lease()
        self._lease = asyncio.get_running_loop().call_later(lease_s, self._expire, epoch)
        return True

    def release(self, epoch: str | None) -> bool:
        """Whether that pause was in force, with None whether any was; then everything goes on."""
        if self.epoch is None or epoch not in (None, self.epoch):
            return False
        self.epoch = None
        self._stop_lease()
        self._admission.held = False
        for engine in self._engines:
            engine.release()
        return True

    def _expire(self, epoch: str) -> None:
        if self.release(epoch):
            event(logger, logging.WARNING, "pause_expired", message="nobody renewed or ended the pause in time")

    def _stop_lease(self) -> None:
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None
