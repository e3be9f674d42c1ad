"""The journal of one worker: committed turns, appended inline, synced by a thread.

    append   one write into the page cache, on the loop: tens of microseconds; gives the position behind the frame
    synced   waits until everything up to a position is on the disk; one sync covers all that were appended before it began

**Failures.** A write that does not fit is taken back (the file is cut to where it was), so nothing is half recorded; the next
append tries again. If it cannot be taken back, or if a sync fails, that is final: the kernel may have dropped the pages, so nothing
that was not acknowledged can be promised any more, and the journal takes no more frames (PostgreSQL came to the same conclusion in
2018, "fsyncgate").

**Segments.** A file that has reached its size is synced and left behind, and a new one begun. So a file's frames are on the disk
before any of the next one's, and what a loss of power takes is always the end of the last file, never a gap.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path

from adapter.storage.atomic import sync_folder
from adapter.storage.errors import StorageError
from adapter.storage.frames import FILE_HEADER_BYTES, Extent, FileHeader, Frame
from adapter.storage.segments import SegmentName, segments
from adapter.storage.syncing import SyncThread
from adapter.types import Durability


class JournalFailed(StorageError):
    """A frame was not recorded, or may not have been. The message is for an operator."""


class Journal:
    """Appends to one slot's segments. All methods but the sync thread's own run on one event loop."""

    def __init__(
        self, folder: Path, header: FileHeader, first: int, *, durability: Durability, segment_bytes: int
    ) -> None:
        """``first``: the number of the first segment. Raises: JournalFailed."""
        self.folder = folder
        self.failure: str | None = None
        """Why frames cannot be recorded now, for ``/readyz``."""
        self.written = 0
        """Bytes of all frames appended since the start: the position behind the last of them."""
        self.frames: Counter[int] = Counter()
        """Appended since the start, by kind."""
        self.errors = 0
        """Frames that were refused, and those that may not have reached the disk."""
        self.on_sync: Callable[[float], object] | None = None
        """Called with the seconds that each sync took."""
        self.header = header
        self.segment_bytes = segment_bytes
        self.closed = _sizes(folder, header.slot, first)
        """Bytes of the slot's segments that are no longer written."""
        self.closed_bytes = sum(self.closed.values())
        self._durability = durability
        self._synced = 0
        self._behind_since: float | None = None
        self._broken: str | None = None
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._file, self._segment, self._size = self._begin(first)
        self._sync = self._start_syncing() if durability is Durability.FSYNC else None

    @property
    def segment(self) -> SegmentName:
        """The one that is being written."""
        return self._segment

    @property
    def bytes_on_disk(self) -> int:
        """Of all the slot's segments."""
        return self.closed_bytes + self._size

    @property
    def unsynced_bytes(self) -> int:
        """Appended, and not yet known to be on the disk; 0 where nothing is synced."""
        return self.written - self._synced if self._sync is not None else 0

    @property
    def unsynced_s(self) -> float:
        """For how long, at least, something has been waiting for the disk."""
        return 0.0 if self._behind_since is None else time.monotonic() - self._behind_since

    def append(self, frame: Frame) -> Extent:
        """Record a frame; gives where in ``segment`` it lies. Raises: JournalFailed; then nothing was recorded."""
        if self._broken is not None:
            raise self._failed(self._broken)
        data = frame.encode()
        if self._size + len(data) > self.segment_bytes and self._size > FILE_HEADER_BYTES:
            self._leave_segment()
        self._write(data)
        extent = Extent(self._size, len(data))
        self._size += len(data)
        self.written += len(data)
        self.frames[frame.kind] += 1
        self.failure = None
        if self._sync is not None:
            self._behind_since = self._behind_since or time.monotonic()
            self._sync.written(self._file, self.written, self._segment.first, self._size)
        return extent

    async def synced(self, position: int) -> None:
        """Until everything up to ``position`` has the durability that was chosen. Raises: JournalFailed."""
        if self._sync is None or self._synced >= position:
            return
        if self._broken is not None:
            raise self._failed(self._broken)
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((position, waiting))
        await waiting

    def compacted(self, covered: Iterable[SegmentName], merged: SegmentName, size: int) -> None:
        """Closed segments were replaced by one of ``size`` bytes."""
        for name in covered:
            del self.closed[name]
        self.closed[merged] = size
        self.closed_bytes = sum(self.closed.values())

    def close(self) -> None:
        """Sync what is left, and end the thread."""
        if self._sync is not None:
            self._sync.stop()
        os.close(self._file)

    def _start_syncing(self) -> SyncThread:
        loop = asyncio.get_running_loop()
        return SyncThread(
            lambda *report: loop.call_soon_threadsafe(self._wake, *report),
            self.folder / f"{self.header.slot:02d}.synced",
        )

    def _leave_segment(self) -> None:
        full, left = self._file, (self._segment, self._size)
        if self._sync is not None:
            try:
                os.fdatasync(full)
            except OSError as error:
                self._wake(0, error, 0.0)
                raise JournalFailed(str(self._broken)) from error
        self._file, self._segment, self._size = self._begin(self._segment.last + 1)
        self.closed[left[0]] = left[1]
        self.closed_bytes += left[1]
        if self._sync is None:
            os.close(full)
        else:
            self._sync.left(full)

    def _begin(self, number: int) -> tuple[int, SegmentName, int]:
        """An empty segment: its file descriptor, its name and its bytes."""
        name = SegmentName(self.header.slot, number, number)
        path = self.folder / str(name)
        try:
            # Without its header a file counts as empty, so one that was begun in vain is simply begun again.
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, self.header.encode())
                os.fsync(file)
                sync_folder(self.folder)
            except OSError:
                os.close(file)
                raise
        except OSError as error:
            raise self._failed(f"cannot begin {path}: {error.strerror or error}") from error
        return file, name, FILE_HEADER_BYTES

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            reason = f"cannot write {self.folder / str(self._segment)}: {error.strerror or error}"
            self._take_back(reason)
            raise self._failed(reason) from error

    def _take_back(self, reason: str) -> None:
        """Behind half a frame no other may stand."""
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            self._broken = f"{reason}; the half of a frame cannot be taken back, restart the server"

    def _wake(self, position: int, failure: OSError | None, seconds: float) -> None:
        """On the loop: tell the turns that a sync covered, or all of them that it failed."""
        self._synced = max(self._synced, position)
        # What is left came while the sync ran.
        self._behind_since = time.monotonic() if self.unsynced_bytes else None
        if self.on_sync is not None:
            self.on_sync(seconds)
        if failure is not None:
            self._broken = f"cannot sync {self.folder}: {failure.strerror or failure}; restart the server"
        for _ in range(len(self._waiting)):
            wanted, waiting = self._waiting.popleft()
            if waiting.done():
                continue
            if wanted <= self._synced:
                waiting.set_result(None)
            elif self._broken is not None:
                waiting.set_exception(self._failed(self._broken))
            else:
                self._waiting.append((wanted, waiting))

    def _failed(self, reason: str) -> JournalFailed:
        self.failure = reason
        self.errors += 1
        return JournalFailed(reason)


def _sizes(folder: Path, slot: int, first: int) -> dict[SegmentName, int]:
    earlier = [name for name in segments(folder) if name.slot == slot and name.last < first]
    return {name: (folder / str(name)).stat().st_size for name in earlier}
