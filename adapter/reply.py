"""A reply as it comes to be: numbered wire events, made by one task, read by any number of connections.

The task prepares the turn, runs it and appends what goes on the wire; a connection is a cursor. So a client that lost its
connection can be given the same reply again, a retry can join a reply that is still running, and an observer can follow one.
The life of a reply:

    PREPARING ──► RUNNING ──► COMMITTED ──► DELIVERED
        │            │
        ├────────────┼──► FAILED       the engine or the request: the error is the answer
        └────────────┴──► CANCELLED    its last reader left before the commit, or it was interrupted, or its session ended

Who reads: ``reader`` for the client that asked (it keeps the reply alive, and nothing that it has not taken is forgotten),
``observer`` for anybody else. A reply with ``background`` runs on without readers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from adapter.buffer import EventBuffer, Reader
from adapter.errors import AdapterError, Gone
from adapter.records import ResponseRecord


class ReplyState(StrEnum):
    """Where a reply stands."""

    PREPARING = "preparing"
    """Everything that can be refused is being checked; nothing was asked of the engine."""
    RUNNING = "running"
    COMMITTED = "committed"
    """The turn is recorded and every event is there."""
    DELIVERED = "delivered"
    """The last event was written to a socket."""
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

_SESSION_ENDED = "the session was finished or dropped while this turn was running"


class LiveReply:
    """One reply. ``body`` is the parsed request that asked for it, ``key`` the client's idempotency key.

    ``events`` are what goes on the wire, in order: the frames of a stream, or one JSON body. ``error`` is set when it failed.
    """

    def __init__(
        self,
        route: str,
        body: Mapping[str, Any],
        key: str | None = None,
        *,
        background: bool = False,
        keep_bytes: int | None = None,
        digest: str | None = None,
    ) -> None:
        self.route = route
        self.body: Mapping[str, Any] | None = body if digest is None else None
        """None once the same request could not be given this reply any more, and where ``digest`` stands for it."""
        self.key = key
        self.background = background
        self.number = 0
        """Its number in its session, counted from 1; given by ``ReplyBook.add``."""
        self.wire_id: str | None = None
        """The id that the reply has in its protocol, for routes that name it by that."""
        self.state = ReplyState.PREPARING
        self.headers: dict[str, str] = {}
        """For the response, known once the turn is prepared."""
        self.keepalive = b""
        """What a connection writes while there is nothing to write."""
        self.events = EventBuffer(keep_bytes)
        self.error: AdapterError | None = None
        self.ended_at: float | None = None
        """By ``time.monotonic``."""
        self.recorded = False
        """Its turn is in the trajectory, though perhaps not on the disk yet: nothing stops it any more."""
        self.on_delivery: Callable[[], None] | None = None
        """Called when the last event was written for the first time."""
        self.on_commit: Callable[[bytes], ResponseRecord | None] | None = None
        """Called just before its turn is recorded, with what makes it complete; gives it as a stored response is recorded."""
        self.digest = digest
        """Of the request, where the request itself is not kept."""
        self.on_end: list[Callable[[LiveReply], None]] = []
        """Each is called once, in this order, when no more will come."""
        self._render_error: Callable[[AdapterError], bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._cancelled_by: AdapterError | None = None
        self.abandoned = False
        """Its last reader left, and it is being stopped: nobody can be given it any more."""
        self._pieces = 0
        self._readers = 0

    @property
    def open(self) -> bool:
        """Whether more may come."""
        return self.state in _OPEN

    @property
    def undelivered(self) -> bool:
        """Whether it is complete, or will be in a moment, and its end was not written for anybody."""
        return self.state is ReplyState.COMMITTED or (self.open and self.recorded and not self.events.held)

    @property
    def is_known(self) -> bool:
        """Whether it can still be told which request it answers."""
        return self.body is not None or self.digest is not None

    @property
    def answered(self) -> bool:
        """Whether more is there than the first piece, the start of a stream: what the engine said."""
        return self._pieces > 1

    def start(self, make: Callable[[LiveReply], Coroutine[Any, Any, None]]) -> None:
        """Run ``make(self)`` in a task of its own. It calls ``begin``, ``append`` and ``commit``; what it raises is the answer."""
        self._task = asyncio.create_task(self._make(make))

    async def _make(self, make: Callable[[LiveReply], Coroutine[Any, Any, None]]) -> None:
        try:
            await make(self)
        except asyncio.CancelledError:
            # Readers of a turn that was cut short are told; a turn that was cancelled because they left has none.
            if self.open:
                self._fail(self._cancelled_by or Gone(_SESSION_ENDED), ReplyState.CANCELLED)
        except AdapterError as error:
            self._fail(error, ReplyState.FAILED)

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
        """Whole events only."""
        if piece:
            self._pieces += 1
            self.events.append(piece)

    def commit(self, piece: bytes) -> None:
        """The turn is recorded; ``piece`` makes the reply complete."""
        self.append(piece)
        self._move(ReplyState.COMMITTED)

    def error_event(self, error: AdapterError) -> bytes:
        """``error`` as the event that ends a stream early; nothing where the reply is no stream."""
        return b"" if self._render_error is None else self._render_error(error)

    def delivered(self) -> None:
        """A reader has written the last event to its socket."""
        if self.state is ReplyState.COMMITTED and self.on_delivery is not None:
            self.on_delivery()
        self._move(ReplyState.DELIVERED)

    def recovered(self, wire: bytes, headers: dict[str, str]) -> None:
        """It was complete before the server was restarted."""
        self.begin(headers)
        self.commit(wire)

    async def interrupt(self, error: AdapterError) -> bool:
        """Stop making it, with ``error`` as the answer; what was sampled is kept aside. False if it is too late for that."""
        if self._task is None or not self._stoppable:
            return False
        self._cancelled_by = error
        self._task.cancel()
        await asyncio.wait({self._task})
        return self.state is ReplyState.CANCELLED

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """Read from the beginning and hold the reply open: when the last reader of an open reply leaves, nobody wants it."""
        self._readers += 1
        try:
            with self.events.reader(holds=True) as reader:
                yield reader
        finally:
            self._readers -= 1
            if self._readers == 0 and self._stoppable and not self.background and self._task is not None:
                self.abandoned = True
                self._task.cancel()

    @contextmanager
    def observer(self, start: int = 0) -> Iterator[Reader]:
        """Read from event ``start`` on, without a say in the reply's life. It may fall out of the buffer."""
        with self.events.reader(start) as reader:
            yield reader

    def forget(self) -> None:
        """Let go of its events and of the request; readers are told."""
        self.events.clear()
        self.body = None

    @property
    def _stoppable(self) -> bool:
        return self.open and not self.recorded

    def _fail(self, error: AdapterError, state: ReplyState) -> None:
        self.error = error
        self.events.append(self.error_event(error))
        self._move(state)

    def _move(self, state: ReplyState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"a reply that is {self.state} cannot become {state}")
        was_open = self.open
        self.state = state
        if self.open:
            self.events.wake()
            return
        if state is not ReplyState.COMMITTED:
            self.body = self.digest = None
        if was_open:
            self.ended_at = time.monotonic()
            self.events.close()
            calls, self.on_end = self.on_end, []
            for call in calls:
                call(self)
