"""What a worker finds in its journal: live sessions, finished ones, torn tails and damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adapter.recorder import JournalRecorder
from adapter.records import ReplyRecord
from adapter.storage.frames import FILE_HEADER_BYTES, FileHeader, FrameKind
from adapter.storage.journal import Durability, Journal
from adapter.storage.recovery import Recovered, recover
from adapter.storage.segments import SegmentName, segments
from adapter.trajectory import SavedTurn


def saved(number: int) -> SavedTurn:
    return SavedTurn({"number": number}, {"output": np.array([number], np.int32)})


def recorder(folder: Path, found: Recovered | None = None, segment_bytes: int = 1 << 20) -> JournalRecorder:
    found = found or recover(folder, 0)
    header = FileHeader(0, found.epoch)
    journal = Journal(folder, header, found.next_segment, durability=Durability.OS, segment_bytes=segment_bytes)
    return JournalRecorder(journal, found.catalog, found.counts)


def numbers(found: Recovered, sid: str) -> list[int]:
    turns = [frame for frame in found.catalog.frames(sid) if frame.kind == FrameKind.TURN]
    return [int(frame.arrays["output"][0]) for frame in turns]


def test_live_sessions_come_back_with_their_frames_in_order(tmp_path: Path) -> None:
    record = recorder(tmp_path, segment_bytes=300)
    record.opened("a", {"policy": "keep"})
    record.opened("b", {})
    for number in range(6):
        record.turn("a" if number % 2 else "b", saved(number))
    found = recover(tmp_path, 0)
    assert sorted(found.catalog) == ["a", "b"]
    assert (numbers(found, "a"), numbers(found, "b")) == ([1, 3, 5], [0, 2, 4])
    assert found.counts == {"a": 4, "b": 4}
    assert not found.reports


def test_each_start_has_a_segment_and_an_epoch_of_its_own(tmp_path: Path) -> None:
    recorder(tmp_path).turn("a", saved(1))
    found = recover(tmp_path, 0)
    assert (found.next_segment, found.epoch) == (2, 2)
    recorder(tmp_path, found).turn("a", saved(2))
    again = recover(tmp_path, 0)
    assert numbers(again, "a") == [1, 2]
    assert (again.next_segment, again.epoch) == (3, 3)


def test_finished_and_dropped_sessions(tmp_path: Path) -> None:
    record = recorder(tmp_path)
    for sid in ("a", "b", "c"):
        record.turn(sid, saved(1))
    record.finished("a", {"reward": 1.0}, 12.5, b'{"samples": []}')
    record.dropped("b")
    found = recover(tmp_path, 0)
    assert list(found.catalog) == ["c"]
    assert found.finished["a"].body == {"reward": 1.0}
    frame = found.catalog.last_frame("a")
    assert frame is not None
    assert (found.finished["a"].finished_at, frame.arrays["answer"].tobytes()) == (12.5, b'{"samples": []}')
    assert "b" not in found.finished


def test_a_dropped_name_can_be_used_again(tmp_path: Path) -> None:
    record = recorder(tmp_path)
    record.turn("a", saved(1))
    record.dropped("a")
    record.turn("a", saved(2))
    found = recover(tmp_path, 0)
    assert numbers(found, "a") == [2]
    assert not found.damaged


def test_replies_are_read_back(tmp_path: Path) -> None:
    reply = ReplyRecord(3, "anthropic", "digest", "key", "msg_1", {"x-rollserve-turn": "1"}, b"event: x\n\n")
    recorder(tmp_path).reply("a", reply)
    (frame,) = recover(tmp_path, 0).catalog.frames("a")
    assert frame.kind == FrameKind.REPLY
    assert ReplyRecord.of(frame) == reply


def test_other_slots_are_left_alone(tmp_path: Path) -> None:
    recorder(tmp_path).turn("a", saved(1))
    (tmp_path / str(SegmentName(1, 1, 1))).write_bytes(b"not even a journal")
    assert list(recover(tmp_path, 0).catalog) == ["a"]


@pytest.mark.parametrize("lost", [1, 5, 20])
def test_a_torn_tail_is_cut_and_reported(tmp_path: Path, lost: int) -> None:
    record = recorder(tmp_path)
    record.turn("a", saved(1))
    record.turn("a", saved(2))
    path = tmp_path / str(segments(tmp_path)[0])
    path.write_bytes(path.read_bytes()[:-lost])
    found = recover(tmp_path, 0)
    assert numbers(found, "a") == [1]
    assert "torn" in found.reports[0]
    assert not found.damaged
    assert not recover(tmp_path, 0).reports


def test_a_file_that_was_begun_in_vain_is_no_damage(tmp_path: Path) -> None:
    recorder(tmp_path).turn("a", saved(1))
    (tmp_path / str(SegmentName(0, 2, 2))).write_bytes(b"ROLL")
    found = recover(tmp_path, 0)
    assert numbers(found, "a") == [1]
    recorder(tmp_path, found).turn("a", saved(2))
    assert numbers(recover(tmp_path, 0), "a") == [1, 2]


@pytest.mark.parametrize(
    ("offset_from_end", "followed", "damaged"),
    [
        pytest.param(2, False, ["a"], id="arrays: the header says whose it is"),
        pytest.param(-30, True, ["a"], id="header: the next frame of the session shows the gap"),
        pytest.param(-30, False, [], id="header, and nothing follows: only the report tells"),
    ],
)
def test_a_damaged_frame_costs_its_own_session_only(
    tmp_path: Path, offset_from_end: int, followed: bool, damaged: list[str]
) -> None:
    record = recorder(tmp_path)
    record.turn("b", saved(1))
    start = record.journal.written
    record.turn("a", saved(2))
    end = record.journal.written
    if followed:
        record.turn("a", saved(3))
    record.turn("b", saved(2))
    path = tmp_path / str(record.journal.segment)
    data = bytearray(path.read_bytes())
    data[FILE_HEADER_BYTES + (end if offset_from_end > 0 else start) - offset_from_end] ^= 1
    path.write_bytes(bytes(data))
    found = recover(tmp_path, 0)
    assert list(found.damaged) == damaged
    assert f"{path}: offset {FILE_HEADER_BYTES + start}: the checksum is wrong" in found.reports[0]
    assert numbers(found, "b") == [1, 2]


def test_a_delivery_after_the_end_opens_nothing(tmp_path: Path) -> None:
    record = recorder(tmp_path)
    record.turn("a", saved(1))
    record.finished("a", {}, 1.0, b"{}")
    record.delivered("a", 1)
    assert "a" not in record.catalog
    found = recover(tmp_path, 0)
    assert (list(found.catalog), list(found.finished)) == ([], ["a"])


def test_a_name_that_is_used_again_is_no_longer_finished(tmp_path: Path) -> None:
    record = recorder(tmp_path)
    record.finished("a", {}, 1.0, b"{}")
    record.opened("a", {})
    found = recover(tmp_path, 0)
    assert (list(found.catalog), list(found.finished)) == (["a"], [])
    assert found.catalog.last_frame("a") is None
