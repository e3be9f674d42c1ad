"""Generations of a journal: made, kept, and divided anew for another number of workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adapter.ownership import Ownership
from adapter.recorder import JournalRecorder
from adapter.storage.errors import StorageError
from adapter.storage.frames import FileHeader
from adapter.storage.journal import Journal
from adapter.storage.layout import Layout, prepare, read_layout
from adapter.storage.recovery import recover
from adapter.trajectory import SavedTurn
from adapter.types import Durability

NAMES = [f"session-{number}" for number in range(12)]


def laid_out(folder: Path, workers: int) -> Layout:
    return prepare(folder, workers, Ownership(0, workers).owner, lambda line: None)


def fill(folder: Path, workers: int) -> None:
    """Each session has two turns; the last one is finished, the one before it dropped."""
    layout = laid_out(folder, workers)
    for slot in range(workers):
        found = recover(layout.segments(folder), slot)
        header = FileHeader(slot, found.epoch)
        journal = Journal(
            layout.segments(folder), header, found.next_segment, durability=Durability.OS, segment_bytes=600
        )
        record = JournalRecorder(journal, found.catalog, found.counts)
        for number, sid in enumerate(NAMES):
            if Ownership(slot, workers).owner(sid) == slot:
                _fill_session(record, number, sid)


def _fill_session(record: JournalRecorder, number: int, sid: str) -> None:
    for turn in (1, 2):
        record.turn(sid, SavedTurn({"number": turn}, {"output": np.array([number, turn], np.int32)}))
    if sid == NAMES[-1]:
        record.finished(sid, {"reward": 1}, 3.0, b"answer")
    elif sid == NAMES[-2]:
        record.dropped(sid)


def held(folder: Path, workers: int) -> dict[str, list[list[int]]]:
    """Every session that some slot has, with its turns; each by its owner."""
    layout = read_layout(folder)
    assert layout is not None
    sessions = {}
    for slot in range(workers):
        found = recover(layout.segments(folder), slot)
        assert not found.damaged
        assert not found.reports
        for sid in found.catalog:
            assert Ownership(slot, workers).owner(sid) == slot
            sessions[sid] = [frame.arrays["output"].tolist() for frame in found.catalog.frames(sid)]
    return sessions


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (2, 1), (4, 4)])
def test_another_number_of_workers_finds_every_session(tmp_path: Path, before: int, after: int) -> None:
    fill(tmp_path, before)
    layout = laid_out(tmp_path, after)
    assert layout.workers == after
    assert held(tmp_path, after) == {sid: [[n, 1], [n, 2]] for n, sid in enumerate(NAMES[:-2])}
    owner = Ownership(0, after).owner(NAMES[-1])
    found = recover(layout.segments(tmp_path), owner)
    last = found.catalog.last_frame(NAMES[-1])
    assert last is not None
    assert (found.finished[NAMES[-1]].body, last.arrays["answer"].tobytes()) == ({"reward": 1}, b"answer")


def test_sessions_go_on_in_their_new_slots(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    laid_out(tmp_path, 3)
    layout = laid_out(tmp_path, 3)
    owner = Ownership(0, 3).owner(NAMES[0])
    found = recover(layout.segments(tmp_path), owner)
    journal = Journal(
        layout.segments(tmp_path),
        FileHeader(owner, found.epoch),
        found.next_segment,
        durability=Durability.OS,
        segment_bytes=1 << 20,
    )
    JournalRecorder(journal, found.catalog, found.counts).turn(
        NAMES[0], SavedTurn({"number": 3}, {"output": np.array([0, 3], np.int32)})
    )
    assert held(tmp_path, 3)[NAMES[0]] == [[0, 1], [0, 2], [0, 3]]


def test_a_division_that_was_not_finished_leaves_the_old_one(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    before = held(tmp_path, 2)
    half = Layout(3, 2).segments(tmp_path)
    half.mkdir()
    (half / "00-00000001.journal").write_bytes(b"half of it")
    laid_out(tmp_path, 2)
    assert not half.exists()
    assert held(tmp_path, 2) == before


def test_the_old_generation_is_gone_afterwards(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    laid_out(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["000002"]


@pytest.mark.parametrize("text", ["", "{}", '{"workers": 1, "generation": 1, "version": 9}', '{"shoe_size": 44}'])
def test_a_layout_that_cannot_be_read_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "layout.json").write_text(text)
    with pytest.raises(StorageError, match=r"layout\.json"):
        laid_out(tmp_path, 1)


def test_a_damaged_journal_is_not_divided(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    path = min(Layout(1, 1).segments(tmp_path).iterdir())
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(StorageError, match="1 workers as before"):
        laid_out(tmp_path, 2)
    assert laid_out(tmp_path, 1).generation == 1
    assert path.read_bytes() == data
