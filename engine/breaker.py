"""The circuit breaker of one endpoint: when it is left alone, and when it is tried again. Pure; times are the caller's seconds.

    CLOSED ──so many failures in a row, or one that leaves no doubt──► OPEN ──its pause is over──► HALF_OPEN
       ▲                                                                 ▲                           │
       └───────────────────────── the trial went well ───────────────────┼───────────────────────────┤
                                                                         └── it failed: a longer pause

An endpoint begins OPEN with no pause: that it is fit to be used is for a first trial to show. So it is reopened when another server
than the one that was tried may be there. What fails while it is OPEN was sent before, and makes no pause longer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class BreakerState(StrEnum):
    """Whether an endpoint is used."""

    CLOSED = "closed"
    """It is."""
    OPEN = "open"
    """It failed, and is left alone for a while."""
    HALF_OPEN = "half_open"
    """A trial is going on that nobody's turn depends on."""


@dataclass(slots=True)
class Breaker:
    """``threshold``: failures in a row; pauses double from ``first_pause_s`` to ``longest_pause_s``."""

    threshold: int = 3
    first_pause_s: float = 0.25
    longest_pause_s: float = 5.0
    state: BreakerState = field(default=BreakerState.OPEN, init=False)
    epoch: int = field(default=0, init=False)
    """Counts how often it was closed. What began in an earlier epoch says nothing about this one."""
    _failures: int = field(default=0, init=False)
    _pause_s: float = field(default=0.0, init=False)
    _until: float = field(default=0.0, init=False)

    def succeeded(self) -> None:
        """Something that was sent there went well."""
        self._failures = 0

    def failed(self, now: float, *, certain: bool = False) -> None:
        """``certain``: nothing sent there could go well, so one failure is enough."""
        if self.state is BreakerState.OPEN:
            return
        self._failures += 1
        if self.state is BreakerState.CLOSED and not certain and self._failures < self.threshold:
            return
        self._pause_s = min(max(2 * self._pause_s, self.first_pause_s), self.longest_pause_s)
        self._until = now + self._pause_s
        self.state = BreakerState.OPEN

    def reopen(self, now: float) -> None:
        """Nothing failed, but what was tried is not what is there now: a trial is due at once."""
        self.state, self._until = BreakerState.OPEN, now

    def due_in(self, now: float) -> float:
        """Seconds until the next trial of an open breaker."""
        return max(0.0, self._until - now)

    def begin_trial(self) -> None:
        self.state = BreakerState.HALF_OPEN

    def close(self) -> None:
        """The trial went well."""
        self.state, self._failures, self._pause_s = BreakerState.CLOSED, 0, 0.0
        self.epoch += 1
