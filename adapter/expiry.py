"""What time does to sessions: out of memory when idle or when there is no room, dropped past their time to live.

Spilling loses nothing: the session is in the journal, and comes back when it is asked for. Dropping does, and is logged.
"""

from __future__ import annotations

import asyncio
import logging
import time

from adapter.config import Config
from adapter.errors import AdapterError
from adapter.logs import event
from adapter.sessions import Sessions
from adapter.tally import SessionEvent

logger = logging.getLogger("rollserve.sessions")

INTERVAL_S = 1.0
"""Between two looks at all sessions; a look at ten thousand takes some milliseconds."""

LOOKS = 200
"""Sessions that are looked at before others have their turn; of one that is stored the first look reads a frame."""


class Expiry:
    """Keeps ``sessions`` to the configured times and bytes."""

    def __init__(self, sessions: Sessions, config: Config) -> None:
        self._sessions = sessions
        self._config = config

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self.sweep()
            except Exception:
                logger.exception("fault")

    async def sweep(self) -> None:
        """One look at all sessions."""
        self._sessions.replays.sweep()
        if self._config.session_ttl_s is not None:
            await self._drop_expired(time.time() - self._config.session_ttl_s)
        if self._config.session_idle_s is not None:
            self._spill_idle(time.monotonic() - self._config.session_idle_s)
        if self._config.memory_budget_bytes is not None:
            self._sessions.spill_to(self._config.memory_budget_bytes)

    def _spill_idle(self, before: float) -> None:
        for session in self._sessions.live():
            if session.used_at <= before:
                self._sessions.spill(session)

    async def _drop_expired(self, before: float) -> None:
        for number, sid in enumerate(self._sessions.names()):
            if number % LOOKS == LOOKS - 1:
                await asyncio.sleep(0)
            opened_at = self._sessions.opened_at(sid)
            if opened_at is None or opened_at > before:
                continue
            try:
                await self._sessions.drop(sid)
            except AdapterError as error:
                event(logger, logging.WARNING, "session_not_dropped", sid=sid, message=str(error))
            else:
                self._sessions.tally.count(SessionEvent.EXPIRED)
                event(logger, logging.WARNING, "session_expired", sid=sid, opened_at=opened_at)
