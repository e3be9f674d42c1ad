"""What happens when: a heap of due events, and the one thread that runs them in order of their times.

An event is called with the time that it was due, not with the time it is: everything that follows from it (the next
token, whether a coalescing window is over) is counted from there. So a busy machine runs late but does not run
differently.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
import traceback
from collections.abc import Callable
from typing import Protocol

Event = Callable[[float], None]


class Schedule(Protocol):
    """Times are seconds of a monotonic clock. Events of the same time run in the order in which they were scheduled."""

    def at(self, due: float, event: Event) -> None: ...

    def soon(self, event: Event) -> None: ...


class EventLoop:
    """A ``Schedule`` in real time, on its own thread; ``at`` and ``soon`` may be called from any thread."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._heap: list[tuple[float, int, Event]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="event-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """No event runs after this."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def at(self, due: float, event: Event) -> None:
        with self._changed:
            heapq.heappush(self._heap, (due, next(self._order), event))
            if self._heap[0][2] is event:
                self._changed.notify()

    def soon(self, event: Event) -> None:
        self.at(time.monotonic(), event)

    def _run(self) -> None:
        while (item := self._next()) is not None:
            due, event = item
            try:
                event(due)
            except Exception:
                self._warn(traceback.format_exc())

    def _next(self) -> tuple[float, Event] | None:
        """Waits for the next due event; None when closed."""
        with self._changed:
            while not self._closed:
                wait = self._heap[0][0] - time.monotonic() if self._heap else None
                if wait is not None and wait <= 0:
                    due, _, event = heapq.heappop(self._heap)
                    return due, event
                self._changed.wait(None if wait is None else min(wait, threading.TIMEOUT_MAX))
        return None
