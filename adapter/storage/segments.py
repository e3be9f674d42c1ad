"""A journal's files: their names, and reading them.

    <slot>-<first>[-<last>].journal      00-00000007.journal, and 00-00000001-00000006.journal where six were compacted into one

Segments are read in the order of their numbers. A segment whose numbers another one covers was compacted, and the process stopped
before it could be deleted: it is passed over.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from adapter.storage.errors import StorageError
from adapter.storage.frames import (
    FILE_HEADER_BYTES,
    Extent,
    FileHeader,
    Frame,
    JournalDamaged,
    OtherVersion,
    candidates,
    decode_frame,
    extent_at,
    extent_by_header,
    length_at,
)

SUFFIX = ".journal"
PART = ".part"
"""Ends the name of a file that is not complete yet, see ``part_path``."""

_NAME = re.compile(r"(?P<slot>\d{2,})-(?P<first>\d{8})(?:-(?P<last>\d{8}))?\.journal")


class DamagedSegment(StorageError):
    """A frame in the middle of a file is not what was written. ``path`` and ``offset`` say where it starts."""

    def __init__(self, path: Path, offset: int, reason: str) -> None:
        super().__init__(
            f"{path}: offset {offset}: {reason}; `rollserve journal repair {path.parent.parent}` keeps what can be read"
        )
        self.path = path
        self.offset = offset
        self.reason = reason


class SegmentGone(StorageError):
    """A file was removed by a compaction after it was listed."""


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """Which segments of which slot's journal a file is."""

    slot: int
    first: int
    last: int

    def __str__(self) -> str:
        span = f"-{self.last:08d}" if self.last != self.first else ""
        return f"{self.slot:02d}-{self.first:08d}{span}{SUFFIX}"

    @classmethod
    def parse(cls, name: str) -> SegmentName | None:
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        first = int(found["first"])
        return cls(int(found["slot"]), first, int(found["last"] or first))

    def covers(self, other: SegmentName) -> bool:
        return self != other and self.slot == other.slot and self.first <= other.first and other.last <= self.last


def segments(folder: Path) -> list[SegmentName]:
    """Every slot's, in the order in which they are read. Empty if there is no such folder."""
    if not folder.is_dir():
        return []
    found = sorted(name for path in folder.iterdir() if (name := SegmentName.parse(path.name)) is not None)
    return [name for name in found if not any(other.covers(name) for other in found)]


def part_path(path: Path) -> Path:
    """What a file is called until it is complete."""
    return path.with_name(f".{path.name}{PART}")


def remove_leftovers(folder: Path, slot: int) -> None:
    """Of compactions of a slot that were not finished: what was copied in part, or was copied and not deleted yet.

    Raises: OSError.
    """
    kept = set(segments(folder))
    for path in folder.iterdir() if folder.is_dir() else ():
        is_part = path.name.endswith(PART)
        name = SegmentName.parse(path.name.removesuffix(PART).removeprefix(".") if is_part else path.name)
        if name is not None and name.slot == slot and (is_part or name not in kept):
            path.unlink()


class SegmentFile:
    """One file, mapped for reading. Frames' arrays are views of the map: they live as long as it does."""

    def __init__(self, path: Path) -> None:
        """Raises: StorageError; SegmentGone."""
        self.path = path
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
                self._data = memoryview(self._map)
        except FileNotFoundError as error:
            raise SegmentGone(f"{path} is no longer there") from error
        except OSError as error:
            raise StorageError(f"cannot read the journal {path}: {error.strerror or error}") from error
        self.torn_at: int | None = None
        """Where a frame begins that was not written to its end; known once all of the file was read."""

    @property
    def is_empty(self) -> bool:
        """The process stopped before it had written the file's header: nothing was recorded."""
        return len(self._data) < FILE_HEADER_BYTES

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self._data)

    def header(self) -> FileHeader:
        """Raises: DamagedSegment; StorageError, for another version's file."""
        try:
            return FileHeader.decode(bytes(self._data[:FILE_HEADER_BYTES]))
        except OtherVersion as error:
            raise StorageError(f"{self.path}: {error}") from error
        except JournalDamaged as error:
            raise DamagedSegment(self.path, 0, str(error)) from error

    def epoch(self) -> int:
        """0 if that cannot be read. Raises: StorageError, for another version's file."""
        try:
            return self.header().epoch
        except DamagedSegment:
            return 0

    def frame(self, extent: Extent) -> Frame:
        """Raises: DamagedSegment."""
        try:
            return decode_frame(self._data[extent.start : extent.end])
        except JournalDamaged as error:
            raise DamagedSegment(self.path, extent.start, str(error)) from error

    def frame_at(self, offset: int) -> Frame:
        """The frame that begins at ``offset``. Raises: DamagedSegment."""
        return self.frame(self._extent(offset))

    def _extent(self, offset: int) -> Extent:
        extent = self.extent_at(offset)
        if extent is None:
            raise DamagedSegment(self.path, offset, "the length is wrong")
        return extent

    def extent_at(self, offset: int) -> Extent | None:
        """None if no whole frame begins there, by its length."""
        return extent_at(self._data, offset)

    def length_at(self, offset: int) -> int | None:
        """What the length field there says. None if the file ends before it does."""
        return length_at(self._data, offset)

    def bytes_of(self, extent: Extent) -> memoryview:
        return self._data[extent.start : extent.end]

    def bytes_at(self, offset: int) -> memoryview:
        """All of the frame that begins at ``offset``. Raises: DamagedSegment."""
        return self.bytes_of(self._extent(offset))

    def candidates(self, offset: int) -> Iterator[int]:
        """Where, from ``offset`` on, a frame might begin."""
        return candidates(self._map, offset)

    def is_good(self, extent: Extent | None) -> bool:
        """Whether a frame is there and its checksum is right."""
        try:
            return extent is not None and bool(self.frame(extent))
        except DamagedSegment:
            return False

    def is_whole(self, offset: int) -> bool:
        """Whether a good frame begins there, whatever its length field says."""
        return self.is_good(extent_by_header(self._data, offset))


def cut_torn_tail(path: Path, offset: int) -> None:
    """End the file at ``offset``, durably. Raises: OSError."""
    with path.open("r+b") as file:
        file.truncate(offset)
        os.fsync(file.fileno())
