"""Compaction: what lives stays, what is dead goes, whatever happens meanwhile and wherever it stops."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from adapter.recorder import JournalRecorder
from adapter.records import ReplyRecord
from adapter.storage import compaction, merging
from adapter.storage.compaction import Compactor
from adapter.storage.frames import FileHeader, FrameKind
from adapter.storage.journal import Durability, Journal
from adapter.storage.recovery import Recovered, read, recover
from adapter.storage.segments import segments
from adapter.trajectory import SavedTurn
from tests.support.wait import until

SEGMENT_BYTES = 2000
WIRE = b"w" * 400


@asynccontextmanager
async def recording(folder: Path, segment_bytes: int = SEGMENT_BYTES) -> AsyncIterator[JournalRecorder]:
    found = recover(folder, 0)
    header = FileHeader(0, found.epoch)
    journal = Journal(folder, header, found.next_segment, durability=Durability.FSYNC, segment_bytes=segment_bytes)
    compactor = Compactor(journal, found.catalog, str(found.damages[0]) if found.damages else None)
    try:
        yield JournalRecorder(journal, found.catalog, found.counts, compactor)
    finally:
        await compactor.close()
        journal.close()


def quiet(record: JournalRecorder) -> Compactor:
    """Compaction by hand only."""
    made = record.compactor
    assert made is not None
    record.compactor = None
    return made


def turn(record: JournalRecorder, sid: str, number: int, *, delivered: bool = True) -> None:
    reply = ReplyRecord(number, "/v1/messages", "d", None, None, {}, WIRE)
    record.turn(sid, SavedTurn({"number": number}, {"output": np.full(20, number, np.int32)}), reply)
    if delivered:
        record.delivered(sid, number)


def play(record: JournalRecorder, sids: range = range(8), turns: int = 4) -> None:
    """Of four sessions in a row one stays, one is finished, one is dropped, and one is dropped and opened again."""
    for number in range(1, turns + 1):
        for each in sids:
            if number == 1:
                record.opened(f"s{each}", {"at": each})
            turn(record, f"s{each}", number, delivered=number < turns)
    for each in sids:
        end(record, each)


def end(record: JournalRecorder, each: int) -> None:
    sid = f"s{each}"
    if each % 4 == 1:
        record.finished(sid, {"reward": each}, 1.0, b"answer of " + sid.encode())
    elif each % 4 >= 2:
        record.dropped(sid)
    if each % 4 == 3:
        record.opened(sid, {"at": -each})
        turn(record, sid, 1)


def held(found: Recovered) -> dict[str, object]:
    """All that can be asked of a journal, but for wires that were delivered."""
    assert not found.damaged
    live: dict[str, object] = {}
    for sid in found.catalog:
        undelivered: dict[int, bytes] = {}
        frames = []
        for frame in found.catalog.frames(sid):
            reply = ReplyRecord.of(frame)
            if reply is not None:
                undelivered[reply.number] = reply.wire
            if frame.kind == FrameKind.DELIVERED:
                undelivered.pop(frame.header["number"], None)
            output = frame.arrays["output"].tolist() if "output" in frame.arrays else None
            frames.append((frame.kind, frame.header.get("at"), frame.header.get("number"), output))
        live[sid] = (frames, undelivered)
    answers = {}
    for sid in found.finished:
        last = found.catalog.last_frame(sid)
        answers[sid] = last and last.arrays["answer"].tobytes()
    return {"live": live, "answers": answers, "counts": {sid: found.counts[sid] for sid in found.catalog}}


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".synced")


async def test_what_lives_stays_and_the_rest_goes(tmp_path: Path) -> None:
    async with recording(tmp_path) as record:
        compactor = quiet(record)
        play(record)
        before, size = held(recover(tmp_path, 0)), record.journal.closed_bytes
        assert len(record.journal.closed) > 4
        last = max(record.journal.closed).last
        await compactor.run()
        assert files(tmp_path) == [f"00-00000001-{last:08d}.journal", str(record.journal.segment)]
        assert record.journal.closed_bytes < size / 3
        assert record.journal.closed_bytes == sum(
            (tmp_path / str(name)).stat().st_size for name in record.journal.closed
        )
        assert held(Recovered(record.catalog, record.counts, recover(tmp_path, 0).finished)) == before
        assert held(recover(tmp_path, 0)) == before


async def test_the_wire_of_a_delivered_reply_goes(tmp_path: Path) -> None:
    async with recording(tmp_path) as record:
        compactor = quiet(record)
        for number in range(1, 9):
            turn(record, "s", number, delivered=number != 3)
        for number in range(9, 15):
            turn(record, "s", number, delivered=False)
        await compactor.run()
        (merged,) = record.journal.closed
        content = (tmp_path / str(merged)).read_bytes()
        assert WIRE * 1 in content
        kept = [ReplyRecord.of(frame) for frame in record.frames("s")]
        assert [reply.number for reply in kept if reply is not None][:3] == [3, 9, 10]
        assert record.catalog.count("s") == 14 + 7
        assert record.catalog.live_bytes == recover(tmp_path, 0).catalog.live_bytes


async def test_what_lives_is_counted_alike_by_who_writes_and_who_reads(tmp_path: Path) -> None:
    async with recording(tmp_path) as record:
        compactor = quiet(record)
        play(record)
        assert record.catalog.live_bytes == recover(tmp_path, 0).catalog.live_bytes > 0
        await compactor.run()
        assert record.catalog.live_bytes == recover(tmp_path, 0).catalog.live_bytes
        for sid in record.catalog.names():
            record.forgotten(sid)
        assert record.catalog.live_bytes == 0


async def test_a_forgotten_answer_goes_too(tmp_path: Path) -> None:
    async with recording(tmp_path) as record:
        compactor = quiet(record)
        play(record)
        record.forgotten("s1")
        play(record, range(8, 12))
        await compactor.run()
        assert b"answer of s1" not in b"".join((tmp_path / name).read_bytes() for name in files(tmp_path))
        assert set(recover(tmp_path, 0).finished) == {"s5", "s9"}
        record.opened("s1", {})
    assert "s1" in recover(tmp_path, 0).catalog


async def test_sessions_that_go_on_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SESSIONS_AT_ONCE", 1)
    async with recording(tmp_path) as record:
        compactor = quiet(record)
        play(record, range(16))
        running = asyncio.create_task(compactor.run())
        for each in range(16):
            await asyncio.sleep(0)
            _go_on(record, each)
        expected = held(Recovered(record.catalog, record.counts, read(tmp_path, 0).finished))
        await running
        assert held(Recovered(record.catalog, record.counts, recover(tmp_path, 0).finished)) == expected
        assert held(recover(tmp_path, 0)) == expected
        assert record.catalog.live_bytes == recover(tmp_path, 0).catalog.live_bytes


def _go_on(record: JournalRecorder, each: int) -> None:
    sid = f"s{each}"
    match each % 8:
        case 0:
            turn(record, sid, 9)
        case 4:
            record.delivered(sid, 4)
            record.finished(sid, {}, 2.0, b"late answer")
        case 1:
            record.dropped(sid)
        case 3:
            record.dropped(sid)
            record.opened(sid, {"at": 99})
        case 7:
            record.delivered(sid, 1)


async def test_it_begins_by_itself_and_again(tmp_path: Path) -> None:
    async with recording(tmp_path) as record:
        for round_ in range(12):
            play(record, range(round_ * 8, round_ * 8 + 8))
            for _ in range(50):
                await asyncio.sleep(0)
        assert record.compactor is not None
        await record.compactor.close()
        assert record.journal.closed_bytes < 3 * record.catalog.live_bytes + 2 * SEGMENT_BYTES
        assert len(recover(tmp_path, 0).finished) == 24


async def test_it_does_not_begin_while_most_lives(tmp_path: Path) -> None:
    async with recording(tmp_path) as record:
        for number in range(1, 30):
            turn(record, "s", number, delivered=False)
        record.finished("t", {}, 1.0, b"")
        assert record.compactor is not None
        assert not record.compactor.is_worth_it()
        assert len(record.journal.closed) > 4


async def test_the_files_of_many_starts_become_one(tmp_path: Path) -> None:
    for number in range(1, compaction.MANY_FILES + 1):
        async with recording(tmp_path, 1 << 20) as record:
            if number % 2:
                turn(record, "s", number, delivered=False)
    before = held(recover(tmp_path, 0))
    async with recording(tmp_path, 1 << 20) as record:
        assert record.compactor is not None
        record.compactor.consider()
        await until(lambda: len(record.journal.closed) == 1)
        await record.compactor.close()
    assert len(segments(tmp_path)) == 2
    assert held(recover(tmp_path, 0)) == before


async def test_over_damage_nothing_is_compacted(tmp_path: Path) -> None:
    async with recording(tmp_path) as record:
        compactor = quiet(record)
        play(record)
        path = tmp_path / str(min(record.journal.closed))
        place = next(iter(record.catalog.portion("s0", frozenset(record.journal.closed)).frames))
        data = bytearray(path.read_bytes())
        data[place[1] + 25] ^= 1
        path.write_bytes(bytes(data))
        before = files(tmp_path)
        record.compactor = compactor
        record.dropped("s4")
        await until(lambda: compactor.blocked is not None)
        assert f"{path}: offset {place[1]}" in str(compactor.blocked)
        assert files(tmp_path) == before
        assert not compactor.is_worth_it()
    async with recording(tmp_path) as record:
        assert record.compactor is not None
        assert not record.compactor.is_worth_it()


async def test_a_full_disk_leaves_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with recording(tmp_path) as record:
        compactor = quiet(record)
        play(record)
        before, content = files(tmp_path), held(recover(tmp_path, 0))
        with monkeypatch.context() as patch:
            patch.setattr(merging.os, "fsync", full)
            record.compactor = compactor
            record.dropped("s0")
            await until(lambda: compactor._task is None)
        assert files(tmp_path) == before
        assert not compactor.is_worth_it(), "not before the next segment"
        play(record, range(100, 108))
        await compactor.close()
        assert content["answers"].items() <= held(recover(tmp_path, 0))["answers"].items()


async def test_stopping_leaves_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with recording(tmp_path) as record:
        compactor = quiet(record)
        play(record)
        before = files(tmp_path)
        compactor.consider()
        await compactor.close()
        assert files(tmp_path) == before
