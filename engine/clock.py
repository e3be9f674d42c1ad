"""Time as the pool sees it, so that a test can be the one who lets it pass; and the event that something changed."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Clock(Protocol):
    """Seconds that only go forward."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class LoopClock:
    """The clock of the running event loop."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Pulse:
    """Wakes everybody who waits, and is ready to be waited for again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def beat(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, clock: Clock, seconds: float | None = None) -> bool:
        """Until the next beat, or for so long; whether it beat."""
        event = self._event
        if seconds is None:
            return await event.wait()
        beat = asyncio.ensure_future(event.wait())
        over = asyncio.ensure_future(clock.sleep(seconds))
        try:
            await asyncio.wait((beat, over), return_when=asyncio.FIRST_COMPLETED)
            return event.is_set()
        finally:
            beat.cancel()
            over.cancel()
