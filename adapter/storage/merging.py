"""The file that a compaction makes: frames of other segments, copied as they are, but for wires that nobody needs any more.

Frames are streamed, one at a time; the segments that they come from are mapped, not read into memory.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from adapter.storage.atomic import sync_folder
from adapter.storage.catalog import WIRE, Portion, Wire
from adapter.storage.frames import FileHeader, Frame
from adapter.storage.segments import SegmentFile, SegmentName, part_path

SYNC_EVERY_BYTES = 16 << 20
"""So that the last sync does not hold up those of turns, which share the disk with it."""


class Stopped(Exception):
    """The server stops."""


@dataclass(frozen=True, slots=True)
class Copied:
    """Where a session's frames, those at ``places``, lie in the new file. They take ``saved`` bytes less than was counted."""

    sid: str
    places: array[int]
    offsets: array[int]
    saved: int


class MergedSegment:
    """Made in a thread. It counts once it was ``put``; ``close`` is always called."""

    def __init__(self, folder: Path, name: SegmentName, header: FileHeader, is_stopping: Callable[[], bool]) -> None:
        """Raises: OSError."""
        self._folder = folder
        self._name = name
        self._is_stopping = is_stopping
        self._sources: dict[SegmentName, SegmentFile] = {}
        self._part = part_path(folder / str(name))
        descriptor = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._size = self._synced = self._file.write(header.encode())

    def add(self, portion: Portion) -> Copied:
        """Raises: StorageError, for a damaged frame; OSError; Stopped."""
        offsets, saved = array("Q"), 0
        for name, offset in portion.frames:
            if self._is_stopping():
                raise Stopped
            data, counted = self._needed(name, offset, portion.undelivered)
            offsets.append(self._size)
            self._size += self._file.write(data)
            saved += counted - len(data)
        if self._size - self._synced >= SYNC_EVERY_BYTES:
            self._sync()
        return Copied(portion.sid, portion.places, offsets, saved)

    def put(self) -> int:
        """Complete; gives the size in bytes. Raises: OSError."""
        self._sync()
        self._part.rename(self._folder / str(self._name))
        sync_folder(self._folder)
        return self._size

    def close(self) -> None:
        """Nothing is left of a file that was not put."""
        try:
            self._file.close()
        finally:
            self._part.unlink(missing_ok=True)

    def _needed(self, name: SegmentName, offset: int, undelivered: frozenset[int]) -> tuple[bytes | memoryview, int]:
        """What is copied of a frame, and the bytes that the catalog counts for it."""
        if name not in self._sources:
            self._sources[name] = SegmentFile(self._folder / str(name))
        source = self._sources[name]
        frame, data = source.frame_at(offset), source.bytes_at(offset)
        wire = Wire.of(frame)
        if wire is None or wire.number in undelivered:
            return data, len(data)
        return _without_wire(frame).encode(), len(data) - wire.size

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._synced = self._size


def _without_wire(frame: Frame) -> Frame:
    header = {name: value for name, value in frame.header.items() if name != "reply"}
    return Frame(frame.kind, header, {name: array for name, array in frame.arrays.items() if name != WIRE})
