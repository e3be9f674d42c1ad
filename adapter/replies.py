"""The replies of a session: those that the same request could still be given, and those that can be read again.

**The same request again** (equal bodies; key order does not matter): while the reply runs, a retry header or the same idempotency
key joins it, and without one it is a new turn, a sibling (best of n). A reply that was committed but whose last event was never
written to a socket is given again. One that was delivered, failed or was cancelled is sampled anew.

**Reading again.** A reply has a number in its session, counted from 1, so one that is no longer kept is told from one that never
was (410, 404). Ended replies are kept until they are too old, or their session or the process has too many bytes of them; the
oldest go first. A reply that a client is still reading stays.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adapter.errors import Gone, KeyReused, NotFound
from adapter.reply import LiveReply, ReplyState

MAX_UNDELIVERED = 16
"""Replies per session that can be given again because nobody fetched their end; the oldest go first. Clients retry in seconds."""


@dataclass(slots=True)
class ReplayBudget:
    """What the ended replies of all sessions may take together; ``keep_s`` seconds after its end a reply has had its time."""

    total_bytes: int
    keep_s: float
    size: int = 0
    _ended: OrderedDict[LiveReply, int] = field(default_factory=OrderedDict)
    """About in the order of their ends, with the bytes they take."""

    def add(self, reply: LiveReply) -> None:
        """``reply`` has ended."""
        self._ended[reply] = reply.events.size
        self.size += reply.events.size
        self.sweep()

    def sweep(self) -> None:
        """Let go of what is too old or too much, oldest first."""
        for _ in range(len(self._ended)):
            reply = next(iter(self._ended))
            if self.size <= self.total_bytes and not self._expired(reply):
                return
            if reply.events.held:
                self._ended.move_to_end(reply)
            else:
                self.drop(reply)

    def drop(self, reply: LiveReply) -> None:
        """Keep nothing of an ended reply."""
        self.size -= self._ended.pop(reply, 0)
        reply.forget()

    def keeps(self, reply: LiveReply) -> bool:
        return reply in self._ended

    def _expired(self, reply: LiveReply) -> bool:
        return reply.ended_at is not None and reply.ended_at + self.keep_s <= time.monotonic()


class ReplyBook:
    """The replies of one session. ``session_bytes`` bounds what the ended ones take."""

    def __init__(self, budget: ReplayBudget, session_bytes: int) -> None:
        self._budget = budget
        self._session_bytes = session_bytes
        self._replies: list[LiveReply] = []
        self._count = 0

    def add(self, reply: LiveReply) -> None:
        """A new reply; it gets its number."""
        self._tidy()
        self._count += 1
        reply.number = self._count
        reply.on_end.append(self._ended)
        self._replies.append(reply)

    def find(self, route: str, body: Mapping[str, Any], key: str | None, *, is_retry: bool) -> LiveReply | None:
        """The reply that this request shall be given, if it is not to be sampled anew.

        Raises: KeyReused, if ``key`` came with another request, as far as that is still known.
        """
        self._tidy()
        for reply in reversed(self._replies):
            is_same = reply.route == route and reply.body == body
            if key is not None and key == reply.key and reply.body is not None and not is_same:
                raise KeyReused(
                    f"the idempotency key {key[:64]!r} was used for another request", field="Idempotency-Key"
                )
            if not is_same or reply.events.first > 0:
                continue
            if reply.state is ReplyState.COMMITTED or is_retry or (key is not None and key == reply.key):
                return reply
        return None

    def get(self, number: int) -> LiveReply:
        """A reply by its number. Raises: NotFound, Gone."""
        self._tidy()
        for reply in self._replies:
            if reply.number == number:
                return reply
        if 1 <= number <= self._count:
            raise Gone(f"reply {number} is no longer kept")
        raise NotFound(f"there is no reply {number} in this session", field="reply")

    def by_wire_id(self, wire_id: str) -> LiveReply | None:
        """A reply by the id that it has in its protocol, if it is still kept."""
        self._tidy()
        return next((reply for reply in self._replies if reply.wire_id == wire_id), None)

    def latest(self, route: str) -> LiveReply | None:
        """The last one of a protocol, if it is still kept."""
        self._tidy()
        return next((reply for reply in reversed(self._replies) if reply.route == route), None)

    def running(self) -> list[LiveReply]:
        return [reply for reply in self._replies if reply.open]

    def close(self) -> None:
        """The session is over: keep nothing but what a client is still reading."""
        for reply in self._replies:
            if not reply.events.held:
                self._budget.drop(reply)

    def _ended(self, reply: LiveReply) -> None:
        self._budget.add(reply)
        ended = [reply for reply in self._replies if self._budget.keeps(reply)]
        size = sum(reply.events.size for reply in ended)
        for oldest in ended:
            if size <= self._session_bytes:
                break
            if not oldest.events.held:
                size -= oldest.events.size
                self._budget.drop(oldest)

    def _tidy(self) -> None:
        self._budget.sweep()
        self._replies = [reply for reply in self._replies if reply.open or self._budget.keeps(reply)]
        undelivered = [reply for reply in self._replies if reply.state is ReplyState.COMMITTED]
        for reply in undelivered[:-MAX_UNDELIVERED]:
            reply.body = None
