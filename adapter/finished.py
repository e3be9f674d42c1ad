"""Finished sessions: what their finish was asked and answered, for whoever asks again. The oldest are forgotten first."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from adapter.session_bodies import FinishRequest

KEEP_FINISHED_S = 24 * 3600.0
"""A trainer that lost the answer to ``finish`` asks again within a day."""


@dataclass(frozen=True, slots=True)
class Finished:
    """One session that is over."""

    request: FinishRequest
    finished_at: float
    """Unix time, seconds."""
    answer: bytes | None
    """None where a journal has it."""
    key_fingerprint: str | None = None


class FinishedSessions:
    """By name. At most ``limit`` of them, and none older than ``KEEP_FINISHED_S``; ``forgotten`` is told whom it lets go of."""

    def __init__(self, limit: int, forgotten: Callable[[str], object]) -> None:
        self._limit = limit
        self._forgotten = forgotten
        self._sessions: OrderedDict[str, Finished] = OrderedDict()

    def __contains__(self, sid: object) -> bool:
        return sid in self._sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, sid: str) -> Finished | None:
        return self._sessions.get(sid)

    def add(self, sid: str, finished: Finished) -> None:
        self._sessions[sid] = finished
        oldest = time.time() - KEEP_FINISHED_S
        while self._sessions:
            first = next(iter(self._sessions))
            if len(self._sessions) <= self._limit and self._sessions[first].finished_at >= oldest:
                return
            del self._sessions[first]
            self._forgotten(first)

    def remove(self, sid: str) -> None:
        del self._sessions[sid]
