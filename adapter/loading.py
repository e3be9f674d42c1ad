"""A session out of the journal: at once, or beside the event loop, so that only who asked for it waits.

A session of a hundred turns takes tens of milliseconds to be rebuilt. Nothing else touches it meanwhile, for nobody has it yet;
what is read beside the loop is taken only if the session was left alone until then (``Sessions.load``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from adapter.recorder import Recorder
from adapter.restoring import Restored, Terms, restore_trajectory
from adapter.session import Session
from adapter.session_bodies import SessionSettings
from adapter.storage.errors import StorageError

UNREADABLE = (StorageError, ValueError, LookupError, StopIteration)
"""What reading a session's frames may raise."""

Made = tuple[Session, Restored]


@dataclass(slots=True)
class Loading:
    """``make`` gives an empty session."""

    recorder: Recorder
    make: Callable[[str, SessionSettings, Terms], Session]
    _running: dict[str, asyncio.Task[Made | None]] = field(default_factory=dict)

    def read(self, sid: str) -> Made:
        """Raises: UNREADABLE."""
        frames = self.recorder.frames(sid)
        terms = Terms.read(next(frames))
        session = self.make(sid, SessionSettings.parse(terms.settings), terms)
        return session, restore_trajectory(session.trajectory, frames)

    async def read_beside(self, sid: str) -> Made | None:
        """In a thread, once for all who wait for it. None if that cannot be, as when the journal is being put together anew."""
        task = self._running.get(sid)
        if task is None:
            task = self._running[sid] = asyncio.create_task(self._in_thread(sid))
            task.add_done_callback(lambda _: self._running.pop(sid, None))
        return await asyncio.shield(task)

    async def _in_thread(self, sid: str) -> Made | None:
        def read() -> Made | None:
            try:
                return self.read(sid)
            except (*UNREADABLE, RuntimeError):  # the catalog changed while it was gone through
                return None

        return await asyncio.to_thread(read)
