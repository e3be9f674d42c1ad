"""Admission: how many turns run at once, and how many wait for a place, in the order in which they came.

A turn takes its place before it is rendered and keeps it until its reply is complete. One that leaves the queue, because its client
did or its session ended, frees its place in it at once. Beyond the queue, and after too long in it, the answer is 429: the client
is told so while it still listens, since nothing is sent to one that waits. The engine's own times begin behind the queue.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from adapter.errors import TooManyRequests

LEAST_RETRY_AFTER_S, MOST_RETRY_AFTER_S = 1.0, 60.0
"""Clients back off by themselves from there, and a guess is no reason to stay away for long."""
SMOOTHING = 0.1
"""Weight of the newest request in the mean of how long places are kept."""


class Admission:
    """Places for turns on one event loop. ``max_running`` None admits every turn."""

    def __init__(self, max_running: int | None, max_queued: int, max_wait_s: float) -> None:
        self.running = 0
        """Turns that have a place."""
        self.held = False
        """The engine is paused: nobody who waits is told that it takes too long."""
        self._max_running = max_running
        self._max_queued = max_queued
        self._max_wait_s = max_wait_s
        self._mean_s = 0.0
        """How long a request keeps its places, on the average of the last ones."""
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Requests that wait: how many turns each has, and what it waits for."""

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @asynccontextmanager
    async def places(self, count: int = 1) -> AsyncIterator[None]:
        """Places for the ``count`` turns of one request, taken together. Raises: TooManyRequests."""
        if self._queue or not self._fits(count):
            await self._wait(count)
        else:
            self.running += count
        began = time.monotonic()
        try:
            yield
        finally:
            self._mean_s += SMOOTHING * (time.monotonic() - began - self._mean_s)
            self.running -= count
            self._admit()

    def _fits(self, count: int) -> bool:
        """A request with more turns than there are places runs alone."""
        return self._max_running is None or not self.running or self.running + count <= self._max_running

    async def _wait(self, count: int) -> None:
        if len(self._queue) >= self._max_queued:
            raise TooManyRequests(
                f"{self.running} turns run and {len(self._queue)} wait; no more may", retry_after=self._retry_after()
            )
        waiting: tuple[int, asyncio.Future[None]] = (count, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        try:
            while not waiting[1].done():
                await asyncio.wait([waiting[1]], timeout=self._max_wait_s)
                if not waiting[1].done() and not self.held:
                    raise TimeoutError
        except BaseException as error:
            self._leave(waiting)
            if isinstance(error, TimeoutError):
                message = f"the turn waited {self._max_wait_s:g} s for others to end"
                raise TooManyRequests(message, retry_after=self._retry_after()) from error
            raise

    def _retry_after(self) -> float:
        """Seconds until those who wait now have their places, if things go on as they went."""
        ahead = math.ceil((len(self._queue) + 1) / (self._max_running or 1))
        return float(math.ceil(min(max(ahead * self._mean_s, LEAST_RETRY_AFTER_S), MOST_RETRY_AFTER_S)))

    def _leave(self, waiting: tuple[int, asyncio.Future[None]]) -> None:
        """Out of the queue; or out of the place that it was given in the same moment."""
        if waiting in self._queue:
            self._queue.remove(waiting)
        else:
            self.running -= waiting[0]
        self._admit()

    def _admit(self) -> None:
        """Give free places to those who have waited longest."""
        while self._queue and self._fits(self._queue[0][0]):
            count, waiting = self._queue.popleft()
            self.running += count
            if not waiting.done():
                waiting.set_result(None)
