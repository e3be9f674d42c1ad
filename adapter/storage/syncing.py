"""Syncs files one after another in a thread of its own; everything is handed over by a queue, so nothing is locked.

What comes while a sync runs is covered by the next one together: the more turns end at once, the fewer syncs each costs.

After each sync its reach is written to a small file, the *mark*: two u64, the number of the segment and the offset in it up to
which everything is on the disk. It costs microseconds and is not synced itself. Who finds a journal after a crash learns from it
what was acknowledged at most; a fault test cuts the journal back to it, as a loss of power would.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

_MARK = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class _Written:
    """Everything up to ``position`` is in the page cache, the end of it in ``file``, at ``offset`` of ``segment``."""

    file: int
    position: int
    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Left:
    """``file`` is full: it is closed once it is synced."""

    file: int


class SyncThread:
    """``report(position, failure, seconds)`` is called in the thread after each sync; a failure (OSError) is the last report."""

    def __init__(self, report: Callable[[int, OSError | None, float], object], mark: Path) -> None:
        self._report = report
        self._mark = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._queue: SimpleQueue[_Written | _Left | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal-sync", daemon=True)
        self._thread.start()

    def written(self, file: int, position: int, segment: int, offset: int) -> None:
        self._queue.put(_Written(file, position, segment, offset))

    def left(self, file: int) -> None:
        self._queue.put(_Left(file))

    def stop(self) -> None:
        """Sync what was handed over, then end."""
        self._queue.put(None)
        self._thread.join()
        os.close(self._mark)

    def _run(self) -> None:
        while self._sync(self._handed_over()):
            pass

    def _handed_over(self) -> list[_Written | _Left | None]:
        items = [self._queue.get()]
        with contextlib.suppress(Empty):
            while True:
                items.append(self._queue.get_nowait())
        return items

    def _sync(self, items: list[_Written | _Left | None]) -> bool:
        """Whether to go on."""
        written = [item for item in items if isinstance(item, _Written)]
        began = time.perf_counter()
        try:
            for file in dict.fromkeys(item.file for item in written):
                os.fdatasync(file)
            if written:
                os.pwrite(self._mark, _MARK.pack(written[-1].segment, written[-1].offset), 0)
        except OSError as error:
            self._report(0, error, time.perf_counter() - began)
            return False
        finally:
            for item in items:
                if isinstance(item, _Left):
                    os.close(item.file)
        if written:
            self._report(written[-1].position, None, time.perf_counter() - began)
        return None not in items
