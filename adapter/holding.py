"""A hold of all workers: the coordinator's own, and what it tells the others.

While it works its holds have a short lease that it renews: if it dies, the others go on by themselves. A worker that cannot be
reached is not waited for: it is being replaced, and its generations ended with it; should it hang, the engines still have them,
and refuse new weights. A coordinator that starts ends what the one before held for an update.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from adapter.errors import Conflict, Unavailable
from adapter.pausing import Hold, Pause

COORDINATOR = 0
"""The slot whose worker coordinates the others."""

WORK_LEASE_S = 15.0
"""Of a hold for an update. It is renewed three times in that time."""

PEER_MARGIN_S = 5.0
"""For a worker's answer, beyond the deadline that it was given."""


NOT_REACHED = 0


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """Of one other worker; ``status`` is HTTP's, or ``NOT_REACHED``."""

    slot: int
    status: int
    body: Mapping[str, Any]


class Peers(Protocol):
    """The other workers, seen from the one of ``slot``."""

    @property
    def slot(self) -> int: ...

    async def tell(self, operation: str, body: Mapping[str, Any], timeout_s: float) -> list[PeerAnswer]:
        """One operation on all of them at once."""
        ...


class NoPeers:
    """One process is all there is."""

    slot = COORDINATOR

    async def tell(self, operation: str, body: Mapping[str, Any], timeout_s: float) -> list[PeerAnswer]:
        return []


class Holding:
    """Holds of all workers. ``pause`` is the coordinator's own."""

    def __init__(self, pause: Pause, peers: Peers) -> None:
        self._pause = pause
        self._peers = peers
        self._asked_for: Hold | None = None

    def _standing(self) -> Hold | None:
        """The pause that is in force, as somebody asked for it; or as this coordinator, which began after another, found it."""
        asked, epoch = self._asked_for, self._pause.epoch
        if epoch is None or (asked is not None and asked.epoch == epoch):
            return None if epoch is None else asked
        return Hold(epoch, 0.0, self._pause.lease_left_s)

    async def begin(self, deadline_s: float, lease_s: float) -> None:
        """A pause that somebody asked for; asked for again, its time begins anew. Raises: Conflict; then nobody holds."""
        standing = self._standing()
        self._asked_for = Hold(_new_epoch() if standing is None else standing.epoch, deadline_s, lease_s)
        await self._hold(self._asked_for)

    async def end(self) -> None:
        """The end of that pause, and of what a coordinator left that is no more."""
        self._asked_for = None
        await self._release(self._pause.epoch)

    async def end_left(self, epoch: str) -> None:
        """The end of what a coordinator held for an update that nobody carries on any more."""
        await self._release(epoch)

    @asynccontextmanager
    async def while_working(self, deadline_s: float) -> AsyncIterator[None]:
        """All workers hold in this block; afterwards only if they did before. Raises: Conflict."""
        standing = self._standing()
        epoch = _new_epoch() if standing is None else standing.epoch
        hold = Hold(epoch, deadline_s, WORK_LEASE_S, for_update=standing is None)
        renewing = asyncio.create_task(self._keep_renewed(hold.epoch))
        try:
            await self._hold(hold)
            yield
        finally:
            renewing.cancel()
            await (self._release(hold.epoch) if standing is None else self._renew(hold.epoch, standing.lease_s))

    async def _keep_renewed(self, epoch: str) -> None:
        while True:
            await asyncio.sleep(WORK_LEASE_S / 3)
            await self._renew(epoch, WORK_LEASE_S)

    async def _hold(self, hold: Hold) -> None:
        others = self._peers.tell("hold", asdict(hold), hold.deadline_s + PEER_MARGIN_S)
        answers, own = await asyncio.gather(others, self._pause.hold(hold), return_exceptions=True)
        failure = own if isinstance(own, BaseException) else _failure(answers)
        if failure is not None:
            await self._release(hold.epoch)
            raise failure

    async def _renew(self, epoch: str, lease_s: float) -> None:
        self._pause.renew(epoch, lease_s)
        await self._peers.tell("renew", {"epoch": epoch, "lease_s": lease_s}, PEER_MARGIN_S)

    async def _release(self, epoch: str | None) -> None:
        self._pause.release(epoch)
        await self._peers.tell("release", {"epoch": epoch}, PEER_MARGIN_S)


def _failure(answers: Sequence[PeerAnswer] | BaseException) -> BaseException | None:
    if isinstance(answers, BaseException):
        return answers
    refused = [answer for answer in answers if answer.status not in (200, NOT_REACHED)]
    if not refused:
        return None
    if refused[0].status == Conflict.status:
        return Conflict(f"the pause of worker {refused[0].slot} ended before everything that ran had")
    return Unavailable(f"worker {refused[0].slot} did not hold: it answered {refused[0].status}; its log says why")


def _new_epoch() -> str:
    return secrets.token_hex(8)
