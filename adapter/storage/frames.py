"""The journal's format, version 1, sans I/O. All integers are little-endian.

    file    magic "ROLLJRNL", u32 version, u32 slot, u64 epoch, then frames
    frame   u32 length, u32 kind, u64 xxh3, u32 header length, header (JSON), arrays

``length`` counts the bytes behind itself, so a reader that does not know a kind can pass over it. ``xxh3`` (64 bits, the kind as
its seed) is of the bytes behind it. The header's member ``arrays`` lists ``[name, dtype, items]`` for each array in order; their
bytes follow raw: ``i4`` int32, ``f4`` float32, ``u1`` bytes. The member ``sid`` is the session that a frame belongs to.

A version may gain kinds, and members and arrays of a frame, that readers of the same version without them pass over, and whose
lack means that there was nothing of the sort; anything else is another version.

``epoch`` counts the starts of the slot's process. A file that breaks off inside its last frame was torn by a crash: that frame was
never acknowledged, and it is cut. A frame whose checksum is wrong is an error.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from adapter.jsontext import dump_json, load_exact

MAGIC = b"ROLLJRNL"
VERSION = 1
MAX_FRAME_BYTES = 1 << 30
"""A length beyond this is damage: a turn of a million tokens takes 16 MB."""

MAX_KIND = 255
"""A kind beyond this is damage."""

_FILE = struct.Struct("<8sIIQ")
_LENGTH = struct.Struct("<I")
_CHECK = struct.Struct("<IQ")
_LEAST = _CHECK.size + _LENGTH.size
"""Bytes behind the length of a frame without header and arrays."""
_HEADER_BEGINS = b'{"'
_DTYPES: Mapping[str, np.dtype[Any]] = {"i4": np.dtype("<i4"), "f4": np.dtype("<f4"), "u1": np.dtype("u1")}

FILE_HEADER_BYTES = _FILE.size
LENGTH_BYTES = _LENGTH.size


class FrameKind(IntEnum):
    """What a frame records."""

    OPEN = 1
    """A session and its settings."""
    TURN = 2
    """A committed turn: its plan, new messages and new ids."""
    INTERRUPTED = 3
    """A reply that was cut off."""
    DELIVERED = 4
    """The last event of a reply was written to its client's socket."""
    FINISH = 5
    """A session's finish and its answer."""
    DROP = 6
    """A session is forgotten."""
    REPLY = 7
    """The wire of a complete reply, for the same request again."""
    WEIGHTS = 8
    """New weights were put in force. It is of no session, and read by people only."""
    RESPONSE = 9
    """A stored response that ended without a turn."""
    RESPONSE_DELETED = 10
    """A client deleted a stored response."""


class JournalDamaged(Exception):
    """What is there cannot be a journal of ours; the message says where and what."""


class OtherVersion(JournalDamaged):
    """A journal of another version."""


MOST_STARTS = 2**48
"""A damaged header could claim the last epoch that fits, and the next start would have none."""


@dataclass(frozen=True, slots=True)
class FileHeader:
    """Whose journal a file is: ``slot`` of the worker, ``epoch`` of its start."""

    slot: int
    epoch: int

    def encode(self) -> bytes:
        return _FILE.pack(MAGIC, VERSION, self.slot, self.epoch)

    @classmethod
    def decode(cls, data: bytes) -> FileHeader:
        """Raises: JournalDamaged."""
        if len(data) < _FILE.size:
            raise JournalDamaged("the file is shorter than its header")
        magic, version, slot, epoch = _FILE.unpack_from(data)
        if magic != MAGIC:
            raise JournalDamaged("this is no journal: the magic is missing")
        if version != VERSION:
            raise OtherVersion(f"the journal's version is {version}; this server reads version {VERSION}")
        if epoch > MOST_STARTS:
            raise JournalDamaged(f"the epoch is {epoch}; no process was started so often")
        return cls(slot, epoch)


@dataclass(frozen=True, slots=True)
class Frame:
    """One record. ``kind`` may be a number that this version does not know."""

    kind: int
    header: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """int32, float32 or uint8, one-dimensional."""

    @property
    def sid(self) -> str | None:
        return self.header.get("sid")

    def encode(self) -> bytes:
        listed = [[name, array.dtype.str[1:], int(array.size)] for name, array in self.arrays.items()]
        header = dump_json({**self.header, "arrays": listed} if listed else self.header)
        raw = [np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data for array in self.arrays.values()]
        checked = b"".join([_LENGTH.pack(len(header)), header, *raw])
        length = _CHECK.size + len(checked)
        return b"".join([_LENGTH.pack(length), _CHECK.pack(self.kind, _digest(self.kind, checked)), checked])


def decode_frame(data: memoryview) -> Frame:
    """The frame in ``data``, which is all of it. Raises: JournalDamaged."""
    kind, digest = _CHECK.unpack_from(data, _LENGTH.size)
    checked = data[_LENGTH.size + _CHECK.size :]
    if _digest(kind, checked) != digest:
        raise JournalDamaged("the checksum is wrong")
    (header_bytes,) = _LENGTH.unpack_from(checked)
    at = _LENGTH.size + header_bytes
    header = load_exact(bytes(checked[_LENGTH.size : at]))
    arrays: dict[str, NDArray[Any]] = {}
    for name, dtype, items in header.pop("arrays", ()):
        arrays[name] = np.frombuffer(checked, _DTYPES[dtype], items, at)
        at += items * _DTYPES[dtype].itemsize
    return Frame(kind, header, arrays)


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a frame lies in its file, in bytes."""

    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


def length_at(data: memoryview, start: int) -> int | None:
    """What the length field at ``start`` says, in bytes behind it. None if the file ends before it does."""
    if start + _LENGTH.size > len(data):
        return None
    return int(_LENGTH.unpack_from(data, start)[0])


def extent_at(data: memoryview, start: int) -> Extent | None:
    """The frame that begins at ``start``. None if its length cannot be, or if the file ends before it does."""
    length = length_at(data, start)
    if length is None or not _LEAST <= length <= MAX_FRAME_BYTES or start + _LENGTH.size + length > len(data):
        return None
    return Extent(start, _LENGTH.size + length)


def extent_by_header(data: memoryview, start: int) -> Extent | None:
    """The frame that begins at ``start``, measured by its header and not by its length. None if that cannot be."""
    header_at = start + 2 * _LENGTH.size + _CHECK.size
    try:
        (header_bytes,) = _LENGTH.unpack_from(data, header_at - _LENGTH.size)
        header = load_exact(bytes(data[header_at : header_at + header_bytes]))
        arrays = sum(items * _DTYPES[dtype].itemsize for _, dtype, items in header.get("arrays", ()))
        end = header_at + header_bytes + arrays
    except (struct.error, ValueError, LookupError, TypeError, AttributeError):
        return None
    return Extent(start, end - start) if start < end <= len(data) else None


def candidates(data: mmap.mmap | bytes, start: int) -> Iterator[int]:
    """Where, from ``start`` on, a frame with a header might begin."""
    at = data.find(_HEADER_BEGINS, start)
    while at >= 0:
        begin = at - 2 * _LENGTH.size - _CHECK.size
        if begin >= start and _CHECK.unpack_from(data, begin + _LENGTH.size)[0] <= MAX_KIND:
            yield begin
        at = data.find(_HEADER_BEGINS, at + 1)


def _digest(kind: int, checked: bytes | memoryview) -> int:
    """The kind is part of it by the seed: no other kind may be read out of a damaged one."""
    return xxhash.xxh3_64_intdigest(checked, seed=kind)
