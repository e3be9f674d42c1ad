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
    decode_frame,
    extent_at,
    guess_header,
    split,
)

SUFFIX = ".journal"

_NAME = re.compile(r"(?P<slot>\d{2,})-(?P<first>\d{8})(?:-(?P<last>\d{8}))?\.journal")


class DamagedSegment(StorageError):
    """A frame in the middle of a file is not what was written. ``path`` and ``offset`` say where it starts."""

    def __init__(self, path: Path, offset: int, reason: str) -> None:
        super().__init__(
            f"{path}: offset {offset}: {reason}; `rollserve journal repair {path.parent}` keeps what can be read"
        )
        self.path = path
        self.offset = offset


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


def covered(folder: Path) -> list[SegmentName]:
    """Those that were compacted into others that are there."""
    kept = set(segments(folder))
    names = (SegmentName.parse(path.name) for path in folder.iterdir())
    return [name for name in names if name is not None and name not in kept]


class SegmentFile:
    """One file, mapped for reading. Frames' arrays are views of the map: they live as long as it does."""

    def __init__(self, path: Path) -> None:
        """Raises: StorageError."""
        self.path = path
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
        except OSError as error:
            raise StorageError(f"cannot read the journal {path}: {error.strerror or error}") from error
        self.torn_at: int | None = None
        """Where a frame begins that was not written to its end; known once all extents were read."""

    @property
    def is_empty(self) -> bool:
        """The process stopped before it had written the file's header: nothing was recorded."""
        return len(self._data) < FILE_HEADER_BYTES

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self._data)

    def header(self) -> FileHeader:
        """Raises: DamagedSegment."""
        try:
            return FileHeader.decode(bytes(self._data[:FILE_HEADER_BYTES]))
        except JournalDamaged as error:
            raise DamagedSegment(self.path, 0, str(error)) from error

    def extents(self) -> Iterator[Extent]:
        """Where its whole frames lie. Raises: DamagedSegment."""
        at = FILE_HEADER_BYTES
        try:
            for extent in split(self._data):
                yield extent
                at = extent.end
        except JournalDamaged as error:
            raise DamagedSegment(self.path, at, str(error)) from error
        self.torn_at = at if at < len(self._data) else None

    def frame(self, extent: Extent) -> Frame:
        """Raises: DamagedSegment."""
        try:
            return decode_frame(self._data[extent.start : extent.end])
        except JournalDamaged as error:
            raise DamagedSegment(self.path, extent.start, str(error)) from error

    def frame_at(self, offset: int) -> Frame:
        """The frame that begins at ``offset``. Raises: DamagedSegment."""
        return self.frame(extent_at(self._data, offset))

    def guess_sid(self, extent: Extent) -> str | None:
        """Whose frame a damaged one was, if that can still be read."""
        sid = guess_header(self._data[extent.start : extent.end]).get("sid")
        return sid if isinstance(sid, str) else None

    def frames(self) -> Iterator[tuple[Extent, Frame]]:
        """Every whole frame. Raises: DamagedSegment."""
        self.header()
        for extent in self.extents():
            yield extent, self.frame(extent)


def cut_torn_tail(path: Path, offset: int) -> None:
    """End the file at ``offset``, durably. Raises: OSError."""
    with path.open("r+b") as file:
        file.truncate(offset)
        os.fsync(file.fileno())
