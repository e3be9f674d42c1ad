"""The journal's format: what is written is read, what is torn is cut, what is damaged is an error. Never anything else."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.storage.frames import (
    FILE_HEADER_BYTES,
    FileHeader,
    Frame,
    FrameKind,
    JournalDamaged,
    decode_frame,
    extent_at,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
HEADERS = st.dictionaries(st.text().filter(lambda name: name != "arrays"), JSON, max_size=4)
ARRAYS = st.dictionaries(
    st.sampled_from(["given", "output", "log_probs"]),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20).map(lambda items: np.array(items, np.int32))
    | st.lists(st.floats(width=32), max_size=20).map(lambda items: np.array(items, np.float32)),
)
FRAMES = st.builds(Frame, st.sampled_from(FrameKind), HEADERS, ARRAYS)


def same(left: Frame, right: Frame) -> bool:
    arrays = left.arrays.keys() == right.arrays.keys() and all(
        left.arrays[name].tobytes() == right.arrays[name].tobytes() for name in left.arrays
    )
    return arrays and left.kind == right.kind and left.header == right.header


def read(data: bytes) -> list[Frame]:
    view, at, frames = memoryview(data), FILE_HEADER_BYTES, []
    while (extent := extent_at(view, at)) is not None:
        frames.append(decode_frame(view[extent.start : extent.end]))
        at = extent.end
    return frames


def file_of(frames: list[Frame]) -> bytes:
    return FileHeader(3, 9).encode() + b"".join(frame.encode() for frame in frames)


@given(st.lists(FRAMES, max_size=4))
def test_frames_come_back(frames: list[Frame]) -> None:
    data = file_of(frames)
    assert FileHeader.decode(data) == FileHeader(3, 9)
    assert all(same(one, other) for one, other in zip(read(data), frames, strict=True))


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "\x00", "👩"])
@pytest.mark.parametrize("number", [2**64, -(2**70), 10**30, 0.1, 1e300])
def test_what_orjson_refuses_comes_back_too(text: str, number: float) -> None:
    frame = Frame(FrameKind.TURN, {"message": {text: [number, text]}})
    assert same(decode_frame(memoryview(frame.encode())), frame)


@given(st.lists(FRAMES, min_size=1, max_size=3), st.data())
def test_a_file_cut_anywhere_gives_the_frames_before_the_cut(frames: list[Frame], data: st.DataObject) -> None:
    whole = file_of(frames)
    cut = data.draw(st.integers(FILE_HEADER_BYTES, len(whole)))
    assert all(same(one, other) for one, other in zip(read(whole[:cut]), frames, strict=False))
    assert len(read(whole[:cut])) == len(frames) or cut < len(whole)


@given(FRAMES, st.data())
def test_a_flipped_bit_is_found(frame: Frame, data: st.DataObject) -> None:
    good = frame.encode()
    at = data.draw(st.integers(4, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(JournalDamaged, match="checksum"):
        decode_frame(memoryview(bytes(bad)))


@given(st.binary(max_size=200))
def test_anything_is_read_torn_or_damaged(data: bytes) -> None:
    with contextlib.suppress(JournalDamaged):
        read(FileHeader(0, 0).encode() + data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "shorter"),
        (b"NOTAJRNL" + FileHeader(0, 0).encode()[8:], "magic"),
        (b"ROLLJRNL\x09" + FileHeader(0, 0).encode()[9:], "version"),
    ],
)
def test_another_file_is_told_from_a_journal(data: bytes, reason: str) -> None:
    with pytest.raises(JournalDamaged, match=reason):
        FileHeader.decode(data)
