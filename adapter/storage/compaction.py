"""Compaction: what is still needed of a slot's closed segments is copied into one, and they are deleted.

    copy      session by session into ``.<slot>-<first>-<last>.journal.part``, in a thread, some sessions at a time
    put       synced and renamed: from here on it counts, and a reader passes over the files whose numbers it covers
    move      the catalog learns the new places, some sessions at a time; both copies are there meanwhile
    delete    the covered files

A crash at any point leaves a readable journal: before the rename the old files count, after it the new one; what is left over is
removed at the next start.

**Why no frame can miss an earlier one.** All closed segments are taken, from the slot's first on. So a ``drop``, or the ``finish``
of a session that was forgotten, goes together with all that it ended. Sessions that are appended to, finished or dropped while a
compaction runs have that recorded in later files, which it does not touch.

**Damage.** Over a file that cannot be read nothing is compacted, since a copy would not show it: `rollserve journal repair` first.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

from adapter.logs import event
from adapter.storage.catalog import Catalog, Move
from adapter.storage.errors import StorageError
from adapter.storage.journal import Journal
from adapter.storage.merging import Copied, MergedSegment, Stopped
from adapter.storage.segments import SegmentName

logger = logging.getLogger("rollserve.journal")

LEAST_DEAD_PART = 0.5
"""Of a segment's full size: to free less is not worth reading all that lives."""

MANY_FILES = 32
"""Each start begins a file. So many that are no more than one together are put together, whatever is in them."""

SESSIONS_AT_ONCE = 64
"""Whose frames are copied, or moved in the catalog, in one step: tens of microseconds on the loop."""

Item = TypeVar("Item")


class Compactor:
    """Compacts one slot's journal in the background, whenever its closed segments hold more that is dead than that is live.

    So for each byte that is freed at most one is copied. Many small files are put together too. All methods run on the event loop.
    """

    def __init__(self, journal: Journal, catalog: Catalog, blocked: str | None = None) -> None:
        self.blocked = blocked
        """Why nothing is compacted, if so."""
        self._journal = journal
        self._catalog = catalog
        self._failed_at: SegmentName | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def consider(self) -> None:
        """Begin if it is worth it. Cheap: it is called after every frame."""
        if self._task is None and self.is_worth_it():
            self._task = asyncio.create_task(self._run_reported())

    def is_worth_it(self) -> bool:
        """After a failure not before the next segment."""
        if self.blocked is not None or self._stopping or self._failed_at == self._journal.segment:
            return False
        closed = self._journal.closed
        if len(closed) >= MANY_FILES and self._journal.closed_bytes <= self._journal.segment_bytes:
            return True
        # Some of what lives is in the open segment, so this may say no where yes would be right.
        live = self._catalog.live_bytes
        dead = self._journal.closed_bytes - live
        return dead > live and dead >= LEAST_DEAD_PART * self._journal.segment_bytes and len(closed) > 1

    async def close(self) -> None:
        """Stop what runs; then the old files stay."""
        self._stopping = True
        if self._task is not None:
            await self._task

    async def _run_reported(self) -> None:
        before = self._journal.closed_bytes
        try:
            await self.run()
            event(
                logger, logging.INFO, "journal_compacted", before_bytes=before, after_bytes=self._journal.closed_bytes
            )
        except Stopped:
            event(logger, logging.INFO, "journal_not_compacted", reason="the server stops")
        except StorageError as error:
            self.blocked = str(error)
            event(logger, logging.WARNING, "journal_not_compacted", reason=self.blocked)
        except OSError as error:
            self._failed_at = self._journal.segment
            event(logger, logging.WARNING, "journal_not_compacted", reason=str(error))
        finally:
            self._task = None

    async def run(self) -> None:
        """Compact all closed segments, of which there is more than one. Raises: StorageError, for damage; OSError; Stopped."""
        covered = frozenset(self._journal.closed)
        merged = SegmentName(min(covered).slot, min(covered).first, max(covered).last)
        file = MergedSegment(self._journal.folder, merged, self._journal.header, lambda: self._stopping)
        try:
            copied = await self._copy(file, covered)
            size = await asyncio.to_thread(file.put)
        finally:
            file.close()
        await self._move(copied, merged)
        await asyncio.to_thread(_delete, self._journal.folder, covered)
        self._journal.compacted(covered, merged, size)

    async def _copy(self, file: MergedSegment, covered: frozenset[SegmentName]) -> list[Copied]:
        copied: list[Copied] = []
        for sids in _some(self._catalog.names()):
            portions = [self._catalog.portion(sid, covered) for sid in sids]
            copied += await asyncio.to_thread(lambda now: [file.add(each) for each in now], portions)
        return copied

    async def _move(self, copied: Iterable[Copied], merged: SegmentName) -> None:
        for some in _some(copied):
            for each in some:
                places = array("Q", [self._catalog.place(merged, offset) for offset in each.offsets])
                self._catalog.moved(Move(each.sid, each.places, places, each.saved))
            await asyncio.sleep(0)


def _delete(folder: Path, names: Iterable[SegmentName]) -> None:
    for name in names:
        (folder / str(name)).unlink()


def _some(items: Iterable[Item]) -> Iterator[list[Item]]:
    rest = iter(items)
    while some := list(islice(rest, SESSIONS_AT_ONCE)):
        yield some
