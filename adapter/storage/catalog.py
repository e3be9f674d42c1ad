"""Which frames of a slot's journal belong to which session, and reading them back.

A place is one unsigned integer: the number of a file in the upper bits, the offset in it in the lower ones. A session that is not
in memory costs eight bytes a frame, and some hundred for itself. Files are numbered here as they come, not by their names: while
frames are copied into another file, both are there.

A frame is *dead* when nobody will read it again: its session was dropped, or finished and this is not its answer. Of a reply that
was delivered the wire is dead. ``live_bytes`` is the size of the rest.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from adapter.storage.frames import Extent, Frame
from adapter.storage.segments import SegmentFile, SegmentName

OFFSET_BITS = 40
"""Segments of up to a terabyte, and 16 million of them."""

WIRE = "wire"
"""The array of a frame that is the wire of a reply; the member ``reply`` of the header says of which."""

_OFFSET = (1 << OFFSET_BITS) - 1


@dataclass(frozen=True, slots=True)
class Wire:
    """That a frame holds the wire of the reply ``number`` of its session, in ``size`` bytes."""

    number: int
    size: int

    @classmethod
    def of(cls, frame: Frame) -> Wire | None:
        reply = frame.header.get("reply")
        return None if reply is None else cls(reply["number"], frame.arrays[WIRE].nbytes)


@dataclass(frozen=True, slots=True)
class Portion:
    """Those frames of a session that lie in certain files, oldest first."""

    sid: str
    places: array[int]
    frames: tuple[tuple[SegmentName, int], ...]
    """The same: file and offset."""
    undelivered: frozenset[int]
    """Numbers of replies whose wire is still needed."""


@dataclass(frozen=True, slots=True)
class Move:
    """The frames at ``old`` lie at ``new``; they take ``saved`` bytes less than was counted."""

    sid: str
    old: array[int]
    new: array[int]
    saved: int


@dataclass(slots=True)
class _Entry:
    """Of one session: ``size`` in bytes, without dead wires; ``wires`` of replies that are not delivered, bytes by number."""

    places: array[int] = field(default_factory=lambda: array("Q"))
    size: int = 0
    wires: dict[int, int] = field(default_factory=dict)


class Catalog:
    """Frames by session, in the order in which they were appended."""

    def __init__(self, folder: Path, slot: int) -> None:
        self.folder = folder
        self.slot = slot
        self.live_bytes = 0
        self._files: list[SegmentName] = []
        self._numbers: dict[SegmentName, int] = {}
        self._sessions: dict[str, _Entry] = {}
        self._finished: dict[str, _Entry] = {}

    def __contains__(self, sid: object) -> bool:
        return sid in self._sessions

    def __iter__(self) -> Iterator[str]:
        return iter(self._sessions)

    def count(self, sid: str) -> int:
        """Frames of a session."""
        return len(self._sessions[sid].places) if sid in self._sessions else 0

    def add(self, sid: str, segment: SegmentName, extent: Extent, wire: Wire | None = None) -> None:
        """A frame of a live session; of one that was finished under the same name nothing is kept any more."""
        self._release(self._finished, sid)
        entry = self._sessions.setdefault(sid, _Entry())
        entry.places.append(self.place(segment, extent.start))
        self._count(entry, extent.length)
        if wire is not None:
            entry.wires[wire.number] = wire.size

    def hold(self, sid: str) -> None:
        """There is such a session, though perhaps no frame of it."""
        self._sessions.setdefault(sid, _Entry())

    def delivered(self, sid: str, number: int) -> None:
        """Nobody will ask for this reply again."""
        entry = self._sessions.get(sid)
        if entry is not None:
            self._count(entry, -entry.wires.pop(number, 0))

    def finish(self, sid: str, segment: SegmentName, extent: Extent) -> None:
        """The session is over; of its frames the one at ``extent`` is kept."""
        self.forget(sid)
        entry = self._finished[sid] = _Entry(array("Q", [self.place(segment, extent.start)]))
        self._count(entry, extent.length)

    def forget(self, sid: str) -> None:
        """Nothing of the session is needed any more."""
        self._release(self._sessions, sid)
        self._release(self._finished, sid)

    def frames(self, sid: str) -> Iterator[Frame]:
        """Every frame of a session. Arrays are views of the file: copy what is to stay. Raises: StorageError."""
        entry = self._sessions.get(sid)
        return iter(()) if entry is None else self.read(entry.places)

    def last_frame(self, sid: str) -> Frame | None:
        """What is kept of a finished session. Raises: StorageError."""
        entry = self._finished.get(sid)
        return None if entry is None else next(self.read(entry.places))

    def read(self, places: Iterable[int]) -> Iterator[Frame]:
        """Raises: StorageError."""
        files: dict[int, SegmentFile] = {}
        for place in places:
            number, offset = place >> OFFSET_BITS, place & _OFFSET
            if number not in files:
                files[number] = SegmentFile(self.folder / str(self._files[number]))
            yield files[number].frame_at(offset)

    def place(self, segment: SegmentName, offset: int) -> int:
        number = self._numbers.get(segment)
        if number is None:
            number = self._numbers[segment] = len(self._files)
            self._files.append(segment)
        return number << OFFSET_BITS | offset

    def names(self) -> list[str]:
        """Of all sessions of which something is kept, finished ones last."""
        return [*self._sessions, *self._finished]

    def portion(self, sid: str, segments: frozenset[SegmentName]) -> Portion:
        """What is kept of a session in these files."""
        entry = self._sessions.get(sid) or self._finished.get(sid) or _Entry()
        places = array("Q", [place for place in entry.places if self._files[place >> OFFSET_BITS] in segments])
        frames = tuple((self._files[place >> OFFSET_BITS], place & _OFFSET) for place in places)
        return Portion(sid, places, frames, frozenset(entry.wires))

    def moved(self, move: Move) -> None:
        """Frames lie elsewhere now. A session that was forgotten meanwhile, or is another one of that name, stays as it is."""
        entry = self._sessions.get(move.sid) or self._finished.get(move.sid)
        if entry is None or not move.old or move.old[0] not in entry.places:
            return
        start = entry.places.index(move.old[0])
        entry.places[start : start + len(move.old)] = move.new
        self._count(entry, -move.saved)

    def _count(self, entry: _Entry, size: int) -> None:
        entry.size += size
        self.live_bytes += size

    def _release(self, entries: dict[str, _Entry], sid: str) -> None:
        entry = entries.pop(sid, None)
        if entry is not None:
            self.live_bytes -= entry.size
