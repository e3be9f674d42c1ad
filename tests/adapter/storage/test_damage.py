"""A journal that was damaged anywhere: what is read was written, sessions that lost nothing load, and no fault but ours escapes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.recorder import JournalRecorder
from adapter.records import ReplyRecord
from adapter.storage.errors import StorageError
from adapter.storage.frames import FILE_HEADER_BYTES, FileHeader, Frame, FrameKind
from adapter.storage.journal import Durability, Journal
from adapter.storage.recovery import Recovered, recover
from adapter.storage.salvage import Damage, scan
from adapter.storage.segments import SegmentFile, SegmentName, segments
from adapter.trajectory import SavedTurn

SESSIONS = ("a", "b", 'c "{"sid":"a","n":1}')


@dataclass(frozen=True, repr=False)
class Written:
    """A journal's files, and the frames of each session as they lie in them."""

    files: dict[str, bytes]
    frames: dict[str, list[bytes]]


def write(folder: Path, segment_bytes: int = 1500) -> None:
    journal = Journal(folder, FileHeader(0, 1), 1, durability=Durability.OS, segment_bytes=segment_bytes)
    record = JournalRecorder(journal, recover(folder, 0).catalog)
    for sid in SESSIONS:
        record.opened(sid, {"policy": "keep"})
    for number in range(1, 7):
        sid = SESSIONS[number % 3]
        header = {"number": number, "message": {"content": f'{{"sid":"{SESSIONS[0]}","n":{number}' * number}}
        reply = ReplyRecord(number, "/v1/messages", "d", None, None, {}, b'data: {"sid":"b","n":0}' * number)
        record.turn(sid, SavedTurn(header, {"output": np.arange(number * 9, dtype=np.int32)}), reply)
        if number % 2:
            record.delivered(sid, number)
    journal.close()


def taken(folder: Path) -> Written:
    files, frames = {}, {sid: [] for sid in SESSIONS}
    for name in segments(folder):
        files[str(name)] = (folder / str(name)).read_bytes()
        for extent, frame in whole(SegmentFile(folder / str(name))):
            frames[frame.sid].append(files[str(name)][extent.start : extent.end])
    return Written(files, frames)


def whole(file: SegmentFile) -> Iterator[tuple]:
    return (item for item in scan(file) if not isinstance(item, Damage))


@contextmanager
def damaged_copy(files: dict[str, bytes]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        yield Path(folder)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("journal")
    write(folder)
    made = taken(folder)
    assert len(made.files) > 2
    return made


@st.composite
def damages(draw: st.DrawFn) -> tuple:
    """What to do to a file, with numbers between 0 and 1 that are scaled to its size."""
    part = st.floats(0, 1, exclude_max=True)
    kind = draw(st.sampled_from(["flip", "cut", "insert", "remove", "blank", "swap", "twice"]))
    return kind, draw(part), draw(part), draw(st.binary(min_size=1, max_size=40))


def damage(data: bytes, frames: list[tuple[int, int]], how: tuple) -> bytes:
    kind, where, other, inserted = how
    at = int(where * len(data))
    length = 1 + int(other * 60)
    match kind:
        case "flip":
            return data[:at] + bytes([data[at] ^ (1 << int(other * 8))]) + data[at + 1 :]
        case "cut":
            return data[:at]
        case "insert":
            return data[:at] + inserted + data[at:]
        case "remove":
            return data[:at] + data[at + length :]
        case "blank":
            return data[:at] + bytes(len(data[at : at + length])) + data[at + length :]
        case _:
            one, two = sorted(frames[int(each * len(frames))] for each in (where, other))
            first, second = data[slice(*one)], data[slice(*two)]
            if kind == "twice":
                return data + first
            if one == two:
                return data
            return data[: one[0]] + second + data[one[1] : two[0]] + first + data[two[1] :]


def test_a_byte_less_in_the_header_is_damage(written: Written) -> None:
    name = sorted(written.files)[0]
    files = {
        **written.files,
        name: damage(written.files[name], [], ("remove", 31 / len(written.files[name]), 0.0, b"")),
    }
    assert len(files[name]) == len(written.files[name]) - 1
    with damaged_copy(files) as folder:
        found = recover(folder, 0)
        _check_frames(found, written)
        _check_sessions(found, written, files)
        assert found.damaged


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damage_anywhere(written: Written, data: st.DataObject) -> None:
    files = dict(written.files)
    name = data.draw(st.sampled_from(sorted(files)))
    damages_done = data.draw(st.lists(damages(), min_size=1, max_size=3))
    for how in damages_done:
        with damaged_copy({name: files[name]}) as folder:
            bounds = [(extent.start, extent.end) for extent, _ in _readable(folder / name)]
        if bounds and files[name]:
            files[name] = damage(files[name], bounds, how)
    with damaged_copy(files) as folder:
        try:
            found = recover(folder, 0)
        except StorageError as error:
            assert "version" in str(error)
            return
        _check_frames(found, written)
        if all(how[0] != "twice" for how in damages_done):
            _check_sessions(found, written, files)


def _readable(path: Path) -> list[tuple]:
    try:
        return list(whole(SegmentFile(path)))
    except StorageError:
        return []


def _check_frames(found: Recovered, written: Written) -> None:
    known = {frame for frames in written.frames.values() for frame in frames}
    for sid in found.catalog:
        assert {frame.encode() for frame in found.catalog.frames(sid)} <= known


def _check_sessions(found: Recovered, written: Written, files: dict[str, bytes]) -> None:
    """Of which every frame is still there, in order."""
    # A frame that was moved into the place of its file's header is looked for behind it only.
    header = bytes(FILE_HEADER_BYTES)
    everything = b"".join(header + files[name][FILE_HEADER_BYTES:] for name in sorted(files))
    for sid, frames in written.frames.items():
        places = [everything.find(frame) for frame in frames]
        if min(places) >= 0 and places == sorted(places):
            assert [frame.encode() for frame in found.catalog.frames(sid)] == frames
            assert sid not in found.damaged


@settings(max_examples=200, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_flipped_bit_goes_unnoticed_and_none_costs_another_session(written: Written, where: float, bit: int) -> None:
    files = dict(written.files)
    name = sorted(files)[1]
    at = FILE_HEADER_BYTES + int(where * (len(files[name]) - FILE_HEADER_BYTES))
    files[name] = files[name][:at] + bytes([files[name][at] ^ (1 << bit)]) + files[name][at + 1 :]
    with damaged_copy(files) as folder:
        found = recover(folder, 0)
        assert len(found.damages) == 1
        assert found.damages[0].extent.start <= at < found.damages[0].extent.end
        assert (folder / name).read_bytes() == files[name], "nothing is cut"
        assert len(found.damaged) <= 1
        _check_sessions(found, written, files)


def frame(number: int) -> Frame:
    return Frame(FrameKind.TURN, {"sid": "s", "n": number, "text": "x" * 700}, {"output": np.array([7, 8], np.int32)})


def segment(folder: Path, *parts: bytes) -> SegmentFile:
    path = folder / str(SegmentName(0, 1, 1))
    path.write_bytes(FileHeader(0, 1).encode() + b"".join(parts))
    return SegmentFile(path)


def longer(data: bytes) -> bytes:
    return (int.from_bytes(data[:4], "little") + 50_000).to_bytes(4, "little") + data[4:]


def test_a_length_beyond_the_end_is_damage_where_good_frames_follow(tmp_path: Path) -> None:
    first, second, third = (frame(number).encode() for number in range(3))
    segment(tmp_path, first, longer(second), third)
    size = (tmp_path / "00-00000001.journal").stat().st_size
    found = recover(tmp_path, 0)
    (lost,) = found.damages
    assert (lost.extent.start, lost.extent.length) == (FILE_HEADER_BYTES + len(first), len(second))
    assert list(found.damaged) == ["s"]
    assert (tmp_path / "00-00000001.journal").stat().st_size == size


def test_a_length_beyond_the_end_is_damage_where_the_frame_is_whole(tmp_path: Path) -> None:
    file = segment(tmp_path, frame(0).encode(), longer(frame(1).encode()))
    items = list(scan(file))
    assert isinstance(items[1], Damage)
    assert items[1].lost == (("s", 1),)
    assert file.torn_at is None


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(frame(1).encode()[:-1], id="a byte short"),
        pytest.param(frame(1).encode()[:3], id="no length yet"),
        pytest.param(bytes(4096), id="blocks that were given to the file and not written"),
        pytest.param(frame(1).encode()[:480] + bytes(len(frame(1).encode()) - 480), id="only its first sector"),
    ],
)
def test_what_was_never_written_out_is_torn(tmp_path: Path, tail: bytes) -> None:
    segment(tmp_path, frame(0).encode(), tail)
    found = recover(tmp_path, 0)
    assert not found.damages
    assert "torn" in found.reports[0]
    assert (tmp_path / "00-00000001.journal").read_bytes().endswith(frame(0).encode())


def test_a_damaged_file_header_costs_no_session(tmp_path: Path) -> None:
    path = segment(tmp_path, frame(0).encode()).path
    path.write_bytes(b"X" + path.read_bytes()[1:])
    found = recover(tmp_path, 0)
    assert found.catalog.count("s") == 1
    assert found.damages[0].extent.start == 0


def test_an_epoch_that_cannot_be_is_damage_and_the_next_start_has_one(tmp_path: Path) -> None:
    path = segment(tmp_path, frame(0).encode()).path
    whole = path.read_bytes()
    path.write_bytes(whole[: FILE_HEADER_BYTES - 8] + b"\xff" * 8 + whole[FILE_HEADER_BYTES:])
    found = recover(tmp_path, 0)
    assert found.catalog.count("s") == 1
    assert "no process was started so often" in found.reports[0]
    FileHeader(0, found.epoch).encode()


def test_another_version_stops_the_start(tmp_path: Path) -> None:
    path = segment(tmp_path, frame(0).encode()).path
    path.write_bytes(path.read_bytes().replace(b"\1\0\0\0", b"\2\0\0\0", 1))
    with pytest.raises(StorageError, match="version is 2"):
        recover(tmp_path, 0)
