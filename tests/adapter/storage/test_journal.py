"""Appending, syncing and segments; and what happens when the disk is full or breaks."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adapter.storage import journal as module
from adapter.storage.frames import FileHeader, Frame, FrameKind
from adapter.storage.journal import Durability, Journal, JournalFailed
from adapter.storage.salvage import Damage, scan
from adapter.storage.segments import (
    DamagedSegment,
    SegmentFile,
    SegmentName,
    cut_torn_tail,
    segments,
)


def frame(number: int, size: int = 0) -> Frame:
    return Frame(FrameKind.TURN, {"sid": "s", "number": number, "fill": "x" * size})


@asynccontextmanager
async def opened(folder: Path, **options: object) -> AsyncIterator[Journal]:
    settings = {"durability": Durability.FSYNC, "segment_bytes": 1 << 20, **options}
    journal = Journal(folder, FileHeader(0, 1), 1, **settings)  # type: ignore[arg-type]
    try:
        yield journal
    finally:
        journal.close()


def numbers(folder: Path) -> list[int]:
    return [number for name in segments(folder) for number in read(SegmentFile(folder / str(name)))]


def read(file: SegmentFile) -> list[int]:
    """The numbers of a file's frames. Raises: DamagedSegment."""
    found = []
    for item in scan(file):
        if isinstance(item, Damage):
            raise DamagedSegment(item.path, item.extent.start, item.reason)
        found.append(item[1].header["number"])
    return found


async def test_what_is_synced_can_be_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        for number in range(5):
            journal.append(frame(number))
        await journal.synced(journal.written)
        assert numbers(tmp_path) == [0, 1, 2, 3, 4]


async def test_an_extent_says_where_its_frame_lies(tmp_path: Path) -> None:
    async with opened(tmp_path, segment_bytes=300) as journal:
        placed = []
        for number in range(6):
            extent = journal.append(frame(number, 50))
            placed.append((journal.segment, extent))
    found = [SegmentFile(tmp_path / str(name)).frame(extent).header["number"] for name, extent in placed]
    assert found == list(range(6))


async def test_a_full_segment_is_left_behind(tmp_path: Path) -> None:
    async with opened(tmp_path, segment_bytes=500) as journal:
        for number in range(20):
            journal.append(frame(number, 100))
            await journal.synced(journal.written)
    assert len(segments(tmp_path)) > 3
    assert numbers(tmp_path) == list(range(20))


async def test_a_frame_larger_than_a_segment_has_one_to_itself(tmp_path: Path) -> None:
    async with opened(tmp_path, segment_bytes=200) as journal:
        journal.append(frame(1, 1000))
        journal.append(frame(2))
    assert numbers(tmp_path) == [1, 2]


async def test_one_sync_covers_all_that_came_during_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    appended, syncs, real = threading.Event(), [], os.fdatasync

    def fdatasync(file: int) -> None:
        appended.wait()
        syncs.append(file)
        real(file)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    async with opened(tmp_path) as journal:
        positions = []
        for number in range(50):
            journal.append(frame(number))
            positions.append(journal.written)
        appended.set()
        await asyncio.gather(*map(journal.synced, positions))
        assert len(syncs) <= 2
        await journal.synced(positions[0])
        assert len(syncs) <= 2


async def test_nothing_is_acknowledged_before_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    real = os.fdatasync

    def fdatasync(file: int) -> None:
        real(file)
        order.append("synced")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    async with opened(tmp_path) as journal:
        journal.append(frame(1))
        await journal.synced(journal.written)
        order.append("acknowledged")
    assert order[:2] == ["synced", "acknowledged"]


async def test_durability_os_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = _counted(monkeypatch)
    async with opened(tmp_path, durability=Durability.OS) as journal:
        journal.append(frame(1))
        await journal.synced(journal.written)
        assert numbers(tmp_path) == [1]
    assert not syncs


async def test_a_write_that_does_not_fit_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    async with opened(tmp_path) as journal:
        journal.append(frame(1))
        monkeypatch.setattr(module.os, "write", _half_then_full(real))
        with pytest.raises(JournalFailed, match="No space left"):
            journal.append(frame(2, 1000))
        assert journal.failure is not None
        assert numbers(tmp_path) == [1]
        monkeypatch.setattr(module.os, "write", real)
        journal.append(frame(3))
        assert journal.failure is None
        await journal.synced(journal.written)
    assert numbers(tmp_path) == [1, 3]


async def test_half_a_frame_that_cannot_be_taken_back_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(file: int, size: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    real = os.write
    async with opened(tmp_path) as journal:
        journal.append(frame(1))
        monkeypatch.setattr(module.os, "write", _half_then_full(real))
        monkeypatch.setattr(module.os, "ftruncate", broken)
        with pytest.raises(JournalFailed, match="No space left"):
            journal.append(frame(2, 1000))
        monkeypatch.undo()
        with pytest.raises(JournalFailed, match="restart the server"):
            journal.append(frame(3))
    assert numbers(tmp_path) == [1]


async def test_a_segment_is_on_the_disk_before_the_next_one_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: dict[str, int] = {}
    real = os.fdatasync

    def fdatasync(file: int) -> None:
        path = str(Path(f"/proc/self/fd/{file}").readlink())
        size = os.fstat(file).st_size
        real(file)
        synced[path] = max(size, synced.get(path, 0))

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    async with opened(tmp_path, segment_bytes=300) as journal:
        for number in range(12):
            before = len(journal.closed)
            journal.append(frame(number, 50))
            if len(journal.closed) > before:
                name = list(journal.closed)[-1]
                assert synced[str(tmp_path / str(name))] == journal.closed[name]
        assert len(journal.closed) > 2


async def test_a_sync_that_fails_when_a_segment_is_left_is_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with opened(tmp_path, segment_bytes=150) as journal:
        journal.append(frame(1, 50))
        await journal.synced(journal.written)
        monkeypatch.setattr(os, "fdatasync", broken)
        for _ in range(2):
            with pytest.raises(JournalFailed, match=r"Input/output error.*restart"):
                journal.append(frame(2, 50))
        assert len(segments(tmp_path)) == 1


async def test_a_sync_that_fails_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with opened(tmp_path) as journal:
        journal.append(frame(1))
        await journal.synced(journal.written)
        monkeypatch.setattr(os, "fdatasync", broken)
        journal.append(frame(2))
        with pytest.raises(JournalFailed, match="Input/output error"):
            await journal.synced(journal.written)
        monkeypatch.undo()
        with pytest.raises(JournalFailed, match="restart"):
            journal.append(frame(3))
        with pytest.raises(JournalFailed):
            await journal.synced(journal.written)
        assert journal.failure is not None


async def test_a_folder_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(JournalFailed, match="cannot begin"):
        Journal(tmp_path / "no", FileHeader(0, 1), 1, durability=Durability.OS, segment_bytes=100)


async def test_a_torn_tail_is_cut(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        journal.append(frame(1))
        journal.append(frame(2))
    path = tmp_path / str(segments(tmp_path)[0])
    path.write_bytes(path.read_bytes()[:-3])
    file = SegmentFile(path)
    assert read(file) == [1]
    assert file.torn_at is not None
    cut_torn_tail(path, file.torn_at)
    assert SegmentFile(path).size == file.torn_at
    assert numbers(tmp_path) == [1]


async def test_damage_names_file_and_offset(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        journal.append(frame(1))
        extent = journal.append(frame(2))
        journal.append(frame(3))
    path = tmp_path / str(segments(tmp_path)[0])
    data = bytearray(path.read_bytes())
    data[extent.end - 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DamagedSegment, match=rf"{path.name}: offset {extent.start}: the checksum is wrong"):
        numbers(tmp_path)


def test_segments_that_were_compacted_are_passed_over(tmp_path: Path) -> None:
    names = [SegmentName(0, 1, 3), SegmentName(0, 2, 2), SegmentName(0, 4, 4), SegmentName(1, 2, 2)]
    for name in names:
        (tmp_path / str(name)).write_bytes(b"")
    (tmp_path / "notes.txt").write_text("no journal")
    assert segments(tmp_path) == [SegmentName(0, 1, 3), SegmentName(0, 4, 4), SegmentName(1, 2, 2)]
    assert SegmentFile(tmp_path / str(names[0])).is_empty


@pytest.mark.parametrize("name", [SegmentName(0, 1, 1), SegmentName(12, 3, 99999999)])
def test_names_are_read_back(name: SegmentName) -> None:
    assert SegmentName.parse(str(name)) == name


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    synced: list[int] = []
    real = os.fdatasync

    def fdatasync(file: int) -> None:
        synced.append(file)
        real(file)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    return synced


def _half_then_full(real: Callable[[int, bytes], int]) -> Callable[[int, bytes], int]:
    calls: list[int] = []

    def write(file: int, data: bytes) -> int:
        calls.append(file)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, bytes(data)[: len(data) // 2])

    return write
