"""Which frames of a slot's journal belong to which session, and reading them back: all of a live one's, a finished one's last.

A place is one unsigned integer: the number of the segment in the upper bits, the offset in it in the lower ones. A session that is
not in memory costs eight bytes a frame.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

from adapter.storage.frames import Frame
from adapter.storage.segments import SegmentFile, SegmentName, segments

OFFSET_BITS = 40
"""Segments of up to a terabyte, and 16 million of them."""


class Catalog:
    """Frames by session, in the order in which they were appended."""

    def __init__(self, folder: Path, slot: int) -> None:
        self.folder = folder
        self.slot = slot
        self._places: dict[str, array[int]] = {}
        self._finished: dict[str, int] = {}

    def __contains__(self, sid: object) -> bool:
        return sid in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def count(self, sid: str) -> int:
        """Frames of a session."""
        return len(self._places.get(sid, ()))

    def add(self, sid: str, segment: SegmentName, offset: int) -> None:
        self._places.setdefault(sid, array("Q")).append(_place(segment.first, offset))

    def finish(self, sid: str, segment: SegmentName, offset: int) -> None:
        """The session is over; of its frames the one at ``offset`` is kept."""
        self._places.pop(sid, None)
        self._finished[sid] = _place(segment.first, offset)

    def forget(self, sid: str) -> None:
        self._places.pop(sid, None)
        self._finished.pop(sid, None)

    def frames(self, sid: str) -> Iterator[Frame]:
        """Every frame of a session. Arrays are views of the file: copy what is to stay. Raises: StorageError."""
        return self._read(self._places.get(sid, ()))

    def last_frame(self, sid: str) -> Frame | None:
        """What is kept of a finished session. Raises: StorageError."""
        place = self._finished.get(sid)
        return None if place is None else next(self._read([place]))

    def _read(self, places: Iterable[int]) -> Iterator[Frame]:
        files: dict[int, SegmentFile] = {}
        for place in places:
            number, offset = place >> OFFSET_BITS, place & ((1 << OFFSET_BITS) - 1)
            if number not in files:
                files[number] = SegmentFile(self.folder / str(self._named(number)))
            yield files[number].frame_at(offset)

    def moved(self, moves: Iterable[tuple[str, array[int]]]) -> None:
        """Frames of sessions lie elsewhere now; sessions that were forgotten meanwhile stay so.

        Each array holds the new places of a session's oldest frames, as many as were moved.
        """
        for sid, places in moves:
            known = self._places.get(sid)
            if known is not None:
                self._places[sid] = places + known[len(places) :]

    def _named(self, number: int) -> SegmentName:
        return next(
            name for name in segments(self.folder) if name.slot == self.slot and name.first <= number <= name.last
        )


def _place(segment: int, offset: int) -> int:
    return segment << OFFSET_BITS | offset
