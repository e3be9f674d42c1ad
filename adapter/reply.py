"""A reply as it comes to be: numbered pieces of wire, made by one task, read by any number of connections.

The task prepares the turn, runs it and appends what goes on the wire; a connection is a cursor. So a client that lost its
connection can be given the same reply again, and a retry can join a reply that is still running. The life of a reply:

    PREPARING ──► RUNNING ──► COMMITTED ──► DELIVERED
        │            │
        ├────────────┼──► FAILED       the engine or the request: the error is the answer
        └────────────┴──► CANCELLED    its last reader left before the commit, or its session is being finished

**The same request again** (equal bodies; key order does not matter): while the reply runs, a retry header or the same idempotency
key joins it, and without one it is a new turn, a sibling (best of n). A reply that was committed but whose last piece was never
written to a socket is given again. One that was delivered, failed or was cancelled is sampled anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from adapter.errors import AdapterError, Gone


class ReplyState(StrEnum):
    """Where a reply stands."""

    PREPARING = "preparing"
    """Everything that can be refused is being checked; nothing was asked of the engine."""
    RUNNING = "running"
    COMMITTED = "committed"
    """The turn is recorded and every piece is there."""
    DELIVERED = "delivered"
    """The last piece was written to a socket."""
    FAILED = "failed"
    CANCELLED = "cancelled"


TRANSITIONS: Mapping[ReplyState, frozenset[ReplyState]] = {
    ReplyState.PREPARING: frozenset({ReplyState.RUNNING, ReplyState.FAILED, ReplyState.CANCELLED}),
    ReplyState.RUNNING: frozenset({ReplyState.COMMITTED, ReplyState.FAILED, ReplyState.CANCELLED}),
    ReplyState.COMMITTED: frozenset({ReplyState.DELIVERED}),
    ReplyState.DELIVERED: frozenset({ReplyState.DELIVERED}),
    ReplyState.FAILED: frozenset(),
    ReplyState.CANCELLED: frozenset(),
}
"""What may follow what. Anything else is a fault of ours. A second reader of a reply may deliver it again."""

_OPEN = frozenset({ReplyState.PREPARING, ReplyState.RUNNING})


class LiveReply:
    """One reply. ``body`` is the parsed request that asked for it, ``key`` the client's idempotency key.

    ``pieces`` are what goes on the wire, in order: the frames of a stream, or one JSON body. ``error`` is set when it failed.
    """

    def __init__(self, route: str, body: Mapping[str, Any], key: str | None = None) -> None:
        self.route = route
        self.body = body
        self.key = key
        self.state = ReplyState.PREPARING
        self.headers: dict[str, str] = {}
        """For the response, known once the turn is prepared."""
        self.keepalive = b""
        """What a connection writes while there is nothing to write."""
        self.pieces: list[bytes] = []
        self.error: AdapterError | None = None
        self._render_error: Callable[[AdapterError], bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._readers = 0
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def open(self) -> bool:
        """Whether more may come."""
        return self.state in _OPEN

    def start(self, make: Callable[[LiveReply], Coroutine[Any, Any, None]]) -> None:
        """Run ``make(self)`` in a task of its own. It calls ``begin``, ``append`` and ``commit``; what it raises is the answer."""
        self._task = asyncio.create_task(self._make(make))

    async def _make(self, make: Callable[[LiveReply], Coroutine[Any, Any, None]]) -> None:
        try:
            await make(self)
        except asyncio.CancelledError:
            # The readers of a turn that was cut short by the end of its session are told; other cancelled turns have none.
            self.error = Gone("the session was finished or dropped while this turn was running")
            self._move(ReplyState.CANCELLED)
        except AdapterError as error:
            self.error = error
            self._move(ReplyState.FAILED)

    def begin(
        self,
        headers: dict[str, str],
        *,
        keepalive: bytes = b"",
        render_error: Callable[[AdapterError], bytes] | None = None,
    ) -> None:
        """The turn is prepared: from here on the engine works. A stream has the last two."""
        self.headers = headers
        self.keepalive = keepalive
        self._render_error = render_error
        self._move(ReplyState.RUNNING)

    def append(self, piece: bytes) -> None:
        if piece:
            self.pieces.append(piece)
            self._wake()

    def commit(self, piece: bytes) -> None:
        """The turn is recorded; ``piece`` makes the reply complete."""
        self.pieces.append(piece)
        self._move(ReplyState.COMMITTED)

    def error_piece(self) -> bytes:
        """The error as the last piece of a stream that failed after its headers."""
        return b"" if self.error is None or self._render_error is None else self._render_error(self.error)

    def delivered(self) -> None:
        """A reader has written the last piece to its socket."""
        self._move(ReplyState.DELIVERED)

    @contextmanager
    def reader(self) -> Iterator[None]:
        """Hold the reply open. When the last reader of an open reply leaves, the turn is cancelled: nobody wants it."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            if self._readers == 0 and self.open and self._task is not None:
                self._task.cancel()

    async def more(self, cursor: int, timeout_s: float | None = None) -> bool:
        """Until there are pieces after ``cursor`` or the reply is no longer open. False if the time ran out first."""
        if len(self.pieces) > cursor or not self.open:
            return True
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            done, _ = await asyncio.wait({waiting}, timeout=timeout_s)
            return bool(done)
        finally:
            self._waiting.discard(waiting)

    def _move(self, state: ReplyState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"a reply that is {self.state} cannot become {state}")
        self.state = state
        self._wake()

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)


MAX_UNDELIVERED = 16
"""Replies per session that are kept though nobody fetched their end; the oldest go first. A client retries within seconds."""


class ReplyBook:
    """The replies of one session that the same request could still be given: those that run, and those not delivered."""

    def __init__(self) -> None:
        self._replies: list[LiveReply] = []

    def find(self, route: str, body: Mapping[str, Any], key: str | None, *, is_retry: bool) -> LiveReply | None:
        """The reply that this request shall be given, if it is not to be sampled anew."""
        self._forget()
        for reply in reversed(self._replies):
            if reply.route != route or reply.body != body:
                continue
            if reply.state is ReplyState.COMMITTED or is_retry or (key is not None and key == reply.key):
                return reply
        return None

    def add(self, reply: LiveReply) -> None:
        self._forget()
        self._replies.append(reply)

    def _forget(self) -> None:
        running = [reply for reply in self._replies if reply.open]
        undelivered = [reply for reply in self._replies if reply.state is ReplyState.COMMITTED]
        kept = {id(reply) for reply in (*running, *undelivered[-MAX_UNDELIVERED:])}
        self._replies = [reply for reply in self._replies if id(reply) in kept]
