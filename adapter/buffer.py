"""What a reply or a feed put on the wire, as numbered events: one writer, any number of readers.

A piece is what was appended at once: one or more events, each ended by a blank line, or one body without any. Events are numbered
from 0 in the order of the wire, for all time: a number is never given twice, whatever was forgotten.

A ``Reader`` is a cursor and one wake-up; there is no queue per reader, and pieces are held once. What is kept is bounded by
``keep_bytes``: past it the oldest pieces go, except those that a reader with ``holds`` has not taken yet. So the connection that
asked for a reply loses nothing of it however long it is, and an observer that falls too far behind is told (``EventsLost``).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager

BLANK_LINE = b"\n\n"

PIECE_OVERHEAD = 128
"""Bytes that a piece costs beyond its own: the object, its places in two lists. So the bound on bytes is one on pieces too."""

SLACK = 4
"""Pieces are let go of in runs of ``1 / SLACK`` of what is kept: moving the rest costs the same whatever the run."""


class EventsLost(Exception):
    """The event that a reader is to be given next is no longer kept. ``first`` is the oldest that is."""

    def __init__(self, first: int) -> None:
        super().__init__(f"events before {first} are no longer kept")
        self.first = first


class EventBuffer:
    """Events ``[first, end)`` are kept; ``size`` is what they cost in bytes. ``keep_bytes`` None keeps everything."""

    def __init__(self, keep_bytes: int | None = None) -> None:
        self.end = 0
        """The number that the next event gets."""
        self.closed = False
        """No more will come."""
        self.size = 0
        self._keep_bytes = keep_bytes
        self._pieces: list[bytes] = []
        self._starts: list[int] = []
        self._readers: set[Reader] = set()

    @property
    def first(self) -> int:
        return self._starts[0] if self._starts else self.end

    @property
    def held(self) -> bool:
        """Whether a reader is owed every event."""
        return any(reader.holds for reader in self._readers)

    @property
    def read(self) -> bool:
        """Whether there is a reader."""
        return bool(self._readers)

    def append(self, piece: bytes) -> None:
        if not piece:
            return
        self._pieces.append(piece)
        self._starts.append(self.end)
        self.end += count_events(piece)
        self.size += len(piece) + PIECE_OVERHEAD
        self.trim()
        self.wake(ready=True)

    def close(self) -> None:
        """Readers take what there is and are done."""
        self.closed = True
        self.wake(ready=True)

    def clear(self) -> None:
        """Keep nothing of what there was, for any reader."""
        self._pieces, self._starts, self.size = [], [], 0
        self.wake(ready=True)

    @contextmanager
    def reader(self, start: int = 0, *, holds: bool = False) -> Iterator[Reader]:
        """A reader of the events from number ``start`` on. With ``holds`` none that it has not taken is let go of."""
        reader = Reader(self, start, holds=holds)
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)

    def trim(self) -> None:
        """Keep to the bound, as far as readers that hold allow."""
        if self._keep_bytes is not None and self.size > self._keep_bytes:
            self._let_go(self._keep_bytes - self._keep_bytes // SLACK)

    def piece_at(self, number: int) -> tuple[int, int]:
        """Index of the piece that holds event ``number``, and the events of that piece before it. Raises: EventsLost."""
        if number < self.first:
            raise EventsLost(self.first)
        index = bisect_right(self._starts, number) - 1
        return index, number - self._starts[index]

    def pieces_from(self, index: int, limit: int) -> list[bytes]:
        """Pieces from ``index`` on: at least one, and no more than make ``limit`` bytes."""
        taken = 0
        for end in range(index, len(self._pieces)):
            taken += len(self._pieces[end])
            if taken >= limit:
                return self._pieces[index : end + 1]
        return self._pieces[index:]

    def _let_go(self, target: int) -> None:
        """Forget the oldest pieces until ``target`` bytes are left, or a reader that holds needs the next; never the newest."""
        owed = min((reader.position for reader in self._readers if reader.holds), default=self.end)
        count = 0
        while self.size > target and count + 1 < len(self._pieces) and self._starts[count + 1] <= owed:
            self.size -= len(self._pieces[count]) + PIECE_OVERHEAD
            count += 1
        del self._pieces[:count], self._starts[:count]

    def wake(self, ready: bool = False) -> None:
        """Let every reader that waits look again."""
        for reader in self._readers:
            reader.wake(ready)


class Reader:
    """One reader of a buffer. ``position`` is the number of the event that it takes next."""

    __slots__ = ("_buffer", "_waiting", "holds", "position")

    def __init__(self, buffer: EventBuffer, position: int, *, holds: bool) -> None:
        self.position = position
        self.holds = holds
        self._buffer = buffer
        self._waiting: asyncio.Future[bool] | None = None

    @property
    def at_end(self) -> bool:
        """Whether everything there will ever be was taken."""
        return self._buffer.closed and self.position >= self._buffer.end

    def take(self, limit: int) -> bytes:
        """The next events, as they are on the wire: what there is, up to about ``limit`` bytes. Raises: EventsLost."""
        return b"".join(self.take_events(limit, whole_pieces=True))

    def take_events(self, limit: int, *, whole_pieces: bool = False) -> list[bytes]:
        """The next events one by one, blank lines included. With ``whole_pieces`` they may come several in one."""
        buffer = self._buffer
        if self.position >= buffer.end:
            return []
        index, inside = buffer.piece_at(self.position)
        pieces = buffer.pieces_from(index, limit)
        if inside or not whole_pieces:
            pieces = [event for piece in pieces for event in events_of(piece)][inside:]
        self.position += sum(count_events(piece) for piece in pieces)
        if self.holds:
            buffer.trim()
        return pieces

    async def more(self, number: int | None = None) -> bool:
        """Until event ``number`` (by default the next to take) is there or no more will come. False if woken for another reason."""
        buffer = self._buffer
        if buffer.end > (self.position if number is None else number) or buffer.closed:
            return True
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            return await self._waiting
        finally:
            self._waiting = None

    def wake(self, ready: bool = False) -> None:
        """Let ``more`` return ``ready``."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(ready)


def count_events(piece: bytes) -> int:
    return piece.count(BLANK_LINE) + (not piece.endswith(BLANK_LINE))


def events_of(piece: bytes) -> list[bytes]:
    """The events of a piece, each with the blank line that ends it."""
    *ended, rest = piece.split(BLANK_LINE)
    return [event + BLANK_LINE for event in ended] + ([rest] if rest else [])
