"""The replies of a session: those that the same request could still be given, and those that can be read again.

**The same request again** (equal bodies; key order does not matter): while the reply runs, a retry header or the same idempotency
key joins it, and without one it is a new turn, a sibling (best of n). A reply that was committed but whose last event was never
written to a socket is given again. One that was delivered, failed or was cancelled is sampled anew.

**Reading again.** A reply has a number in its session, counted from 1, so one that is no longer kept is told from one that never
was (410, 404). Ended replies are kept until they are too old, or their session or the process has too many bytes of them; the
oldest go first. A reply that a client is still reading stays.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import xxhash

from adapter.errors import Gone, KeyReused, NotFound
from adapter.jsontext import dump_json
from adapter.protocols.known import KnownBeginning, list_digest
from adapter.records import ReplyRecord
from adapter.reply import LiveReply, ReplyState

MAX_UNDELIVERED = 16
"""Replies per session that can be given again because nobody fetched their end; the oldest go first. Clients retry in seconds."""


REPLY_OVERHEAD = 2048
"""Bytes that an ended reply takes beside its events, about; so the bounds on bytes are ones on replies too."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """An ended reply, what it took when it ended, and who is told when it is let go of."""

    reply: LiveReply
    size: int
    forgotten: Callable[[LiveReply], None]


class ReplayBudget:
    """What the ended replies of all sessions may take together; ``keep_s`` seconds after its end a reply has had its time."""

    def __init__(self, total_bytes: int, keep_s: float) -> None:
        self.size = 0
        self._total_bytes = total_bytes
        self._keep_s = keep_s
        self._kept: OrderedDict[LiveReply, _Kept] = OrderedDict()
        """About in the order of their ends."""

    def add(self, reply: LiveReply, forgotten: Callable[[LiveReply], None]) -> None:
        """``reply`` has ended."""
        size = reply.events.size + REPLY_OVERHEAD
        self._kept[reply] = _Kept(reply, size, forgotten)
        self.size += size
        self.sweep()

    def sweep(self) -> None:
        """Let go of what is too old or too much, oldest first."""
        for _ in range(len(self._kept)):
            reply = next(iter(self._kept))
            if self.size <= self._total_bytes and not self._expired(reply):
                return
            if reply.events.held:
                self._kept.move_to_end(reply)
            else:
                self.drop(reply)

    def drop(self, reply: LiveReply) -> None:
        """Keep nothing of an ended reply."""
        kept = self._kept.pop(reply, None)
        if kept is not None:
            self.size -= kept.size
            reply.forget()
            kept.forgotten(reply)

    def _expired(self, reply: LiveReply) -> bool:
        return reply.ended_at is not None and reply.ended_at + self._keep_s <= time.monotonic()


class ReplyBook:
    """The replies of one session. ``session_bytes`` bounds what the ended ones take."""

    def __init__(self, budget: ReplayBudget, session_bytes: int) -> None:
        self._budget = budget
        self._session_bytes = session_bytes
        self._count = 0
        self._running: dict[int, LiveReply] = {}
        self._kept: dict[int, tuple[LiveReply, int]] = {}
        """Ended ones with the bytes they take, oldest first."""
        self._size = 0
        self._undelivered: list[LiveReply] = []
        """Of those that were committed the last ones, some of them delivered by now."""
        self._by_wire_id: dict[str, LiveReply] = {}
        self._latest: dict[str, LiveReply] = {}

    def add(self, reply: LiveReply) -> None:
        """A new reply; it gets its number."""
        self._count += 1
        reply.number = self._count
        reply.on_end.append(self._ended)
        self._running[reply.number] = reply
        self._latest[reply.route] = reply
        if reply.wire_id is not None:
            self._by_wire_id[reply.wire_id] = reply

    def restore(self, record: ReplyRecord) -> LiveReply:
        """A reply of an earlier process, complete and not delivered as far as is known."""
        reply = LiveReply(record.route, {}, record.key)
        reply.body, reply.digest, reply.wire_id = None, record.digest, record.wire_id
        self._count = record.number - 1
        self.add(reply)
        reply.recovered(record.wire, dict(record.headers))
        return reply

    def gone_on_from(self, turn: int) -> None:
        """A request goes on from the reply of this turn: its client has it, though the mark of the delivery may be lost."""
        for reply in self._undelivered:
            if reply.undelivered and reply.headers.get("x-rollserve-turn") == str(turn):
                reply.body = reply.digest = None

    def counted(self, number: int) -> None:
        """Replies up to this number were given in an earlier process."""
        self._count = max(self._count, number)

    def find(
        self, route: str, body: Mapping[str, Any], key: str | None, *, is_retry: bool, asked: str | None = None
    ) -> LiveReply | None:
        """The reply that this request shall be given, if it is not to be sampled anew. ``asked`` is its digest, if that is known.

        Raises: KeyReused, if ``key`` came with another request, as far as that is still known.
        """
        self._budget.sweep()
        for reply in sorted((*self._running.values(), *self._undelivered), key=lambda one: one.number, reverse=True):
            is_same = reply.route == route and _answers(reply, body, asked)
            if key is not None and key == reply.key and reply.is_known and not is_same:
                raise KeyReused(
                    f"the idempotency key {key[:64]!r} was used for another request", field="Idempotency-Key"
                )
            if not is_same or reply.abandoned or reply.events.first > 0:
                continue
            if reply.undelivered or is_retry or (key is not None and key == reply.key):
                return reply
        return None

    def get(self, number: int) -> LiveReply:
        """A reply by its number. Raises: NotFound, Gone."""
        self._budget.sweep()
        reply, _ = self._kept.get(number) or (self._running.get(number), 0)
        if reply is not None:
            return reply
        if 1 <= number <= self._count:
            raise Gone(f"reply {number} is no longer kept")
        raise NotFound(f"there is no reply {number} in this session", field="reply")

    def by_wire_id(self, wire_id: str) -> LiveReply | None:
        """A reply by the id that it has in its protocol, if it is still kept."""
        self._budget.sweep()
        return self._by_wire_id.get(wire_id)

    def latest(self, route: str) -> LiveReply | None:
        """The last one of a protocol, if it is still kept."""
        self._budget.sweep()
        return self._latest.get(route)

    def running(self) -> list[LiveReply]:
        return list(self._running.values())

    @property
    def in_use(self) -> bool:
        """Whether a reply runs, is being read, or waits for a client that did not get its end."""
        return bool(self._running) or any(reply.undelivered or reply.events.read for reply, _ in self._kept.values())

    def close(self) -> None:
        """The session is over: keep nothing but what a client is still reading."""
        for reply, _ in list(self._kept.values()):
            if not reply.events.held:
                self._budget.drop(reply)

    def _ended(self, reply: LiveReply) -> None:
        del self._running[reply.number]
        size = reply.events.size + REPLY_OVERHEAD
        self._kept[reply.number] = (reply, size)
        self._size += size
        self._undelivered = [one for one in (*self._undelivered, reply) if one.state is ReplyState.COMMITTED]
        for oldest in self._undelivered[:-MAX_UNDELIVERED]:
            oldest.body = oldest.digest = None
        self._undelivered = self._undelivered[-MAX_UNDELIVERED:]
        self._budget.add(reply, self._forgotten)
        for surplus in self._surplus():
            self._budget.drop(surplus)

    def _surplus(self) -> list[LiveReply]:
        """The oldest replies, as many as are too much."""
        size, found = self._size, []
        for reply, bytes_taken in self._kept.values():
            if size <= self._session_bytes:
                break
            if not reply.events.held:
                size -= bytes_taken
                found.append(reply)
        return found

    def _forgotten(self, reply: LiveReply) -> None:
        _, bytes_taken = self._kept.pop(reply.number)
        self._size -= bytes_taken
        if reply in self._undelivered:
            self._undelivered.remove(reply)
        if reply.wire_id is not None:
            self._by_wire_id.pop(reply.wire_id, None)
        if self._latest.get(reply.route) is reply:
            del self._latest[reply.route]


def record_of(reply: LiveReply, end: bytes) -> ReplyRecord | None:
    """``reply`` with its ``end`` as a journal keeps it; None if the beginning of it, or the request, is no longer kept."""
    asked = digest(reply.body) if reply.body is not None else reply.digest
    if asked is None or reply.events.first > 0:
        return None
    with reply.observer() as reader:
        wire = reader.take(reply.events.size + 1) + end
    return ReplyRecord(reply.number, reply.route, asked, reply.key, reply.wire_id, reply.headers, wire)


def digest(body: Mapping[str, Any], history: str | None = None, known: KnownBeginning | None = None) -> str:
    """The same for equal bodies. A member that is a list counts as it is written: clients do not shuffle keys in their history.

    Of the member ``history`` the beginning may be ``known`` and not be in ``body``.
    """
    lists = {name: value for name, value in body.items() if isinstance(value, list)}
    rest = {name: value for name, value in body.items() if name not in lists}
    seen = xxhash.xxh3_128(_sorted_json(rest))
    for name in sorted(lists):
        before = known.listed if known is not None and name == history else None
        seen.update(dump_json(name) + list_digest(lists[name], before))
    return seen.hexdigest()


def _sorted_json(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return json.dumps(value, sort_keys=True).encode()


def _answers(reply: LiveReply, body: Mapping[str, Any], asked: str | None) -> bool:
    if reply.digest is not None:
        return reply.digest == (asked or digest(body))
    return reply.body == body
