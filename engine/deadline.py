"""A limit on each wait of a long exchange, with one timer for all of them.

``asyncio.timeout`` around every read of a stream costs about as much as the read; here a wait costs a look at the
clock. The timer is set once per limit, and when it fires it is set again for what is left of the wait that is going on
then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType


class Deadline:
    """Calls ``give_up`` once when a wait takes longer than its limit. Each wait is a ``with deadline.of(limit_s):`` block."""

    def __init__(self, give_up: Callable[[], object]) -> None:
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._limit_s = 0.0
        self._since: float | None = None
        self.passed = False

    def of(self, limit_s: float) -> Deadline:
        """Limit the wait that is about to begin."""
        if limit_s != self._limit_s:
            self._limit_s = limit_s
            self._set_timer(limit_s)
        return self

    def close(self) -> None:
        """No wait will follow."""
        if self._timer is not None:
            self._timer.cancel()

    def __enter__(self) -> None:
        self._since = self._loop.time()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._since = None

    def _set_timer(self, delay_s: float) -> None:
        self.close()
        self._timer = self._loop.call_later(delay_s, self._check)

    def _check(self) -> None:
        waited_s = 0.0 if self._since is None else self._loop.time() - self._since
        if waited_s < self._limit_s:
            self._set_timer(self._limit_s - waited_s)
            return
        self.passed = True
        self._give_up()
