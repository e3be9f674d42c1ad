"""Reading a slot's journal at the start of its worker: which sessions are live, which are finished, and what is damaged.

Every frame is read once and its checksum looked at; sessions are rebuilt from their frames when they are first asked for.

- A torn frame at the end of a file was never acknowledged. It is cut, and reported.
- A frame with a wrong checksum is damage. It is reported with file and offset; its session cannot be rebuilt past it, and is
  refused, while all others go on. Frames are numbered within their session, so a missing one shows whoever it belonged to.
- A length that cannot be leaves the rest of its file unreadable: no worker starts on that before it was repaired.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapter.storage.catalog import Catalog
from adapter.storage.frames import Extent, Frame, FrameKind
from adapter.storage.segments import DamagedSegment, SegmentFile, SegmentName, cut_torn_tail, segments


@dataclass(frozen=True, slots=True)
class FinishedSession:
    """``body`` is what finish was given; ``finished_at`` in Unix seconds. The answer is read when it is asked for."""

    sid: str
    body: dict[str, Any]
    finished_at: float
    key_fingerprint: str | None = None


@dataclass(slots=True)
class Recovered:
    """What a slot's journal holds."""

    catalog: Catalog
    """Live sessions, and the answers of finished ones."""
    counts: dict[str, int] = field(default_factory=dict)
    """Frames that each of them has had."""
    finished: dict[str, FinishedSession] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    """Sessions that cannot be rebuilt, and why."""
    reports: list[str] = field(default_factory=list)
    """What was cut or is damaged, for the log."""
    next_segment: int = 1
    epoch: int = 1
    """Of the start that reads this."""


def recover(folder: Path, slot: int) -> Recovered:
    """Read all segments of a slot, and cut what is torn. Raises: StorageError."""
    found = Recovered(Catalog(folder, slot))
    for name in segments(folder):
        if name.slot == slot:
            _read_segment(found, folder / str(name), name)
            found.next_segment = name.last + 1
    return found


def _read_segment(found: Recovered, path: Path, name: SegmentName) -> None:
    file = SegmentFile(path)
    if file.is_empty:
        found.reports.append(f"{path}: no header; the server stopped while it began this file")
        return
    found.epoch = max(found.epoch, file.header().epoch + 1)
    for extent, frame in _checked(found, file):
        _take(found, name, extent, frame)
    if file.torn_at is not None:
        cut_torn_tail(path, file.torn_at)
        found.reports.append(f"{path}: cut a torn frame of {file.size - file.torn_at} bytes at offset {file.torn_at}")


def _checked(found: Recovered, file: SegmentFile) -> Iterator[tuple[Extent, Frame]]:
    for extent in file.extents():
        try:
            yield extent, file.frame(extent)
        except DamagedSegment as damage:
            found.reports.append(str(damage))
            sid = file.guess_sid(extent)
            if sid is not None:
                found.damaged[sid] = str(damage)


def _take(found: Recovered, name: SegmentName, extent: Extent, frame: Frame) -> None:
    sid = frame.sid
    if sid is None:
        return
    expected = found.counts.get(sid, 0)
    ends = frame.kind in (
        FrameKind.FINISH,
        FrameKind.DROP,
    )  # what is left of a session that is over may be its last frame alone
    if frame.header["n"] != expected and not ends and sid not in found.damaged:
        found.damaged[sid] = f"frame {expected} of session {sid!r} is missing before offset {extent.start} of {name}"
        found.reports.append(found.damaged[sid])
    found.counts[sid] = frame.header["n"] + 1
    match frame.kind:
        case FrameKind.FINISH:
            _forget(found, sid)
            found.catalog.finish(sid, name, extent.start)
            found.finished[sid] = FinishedSession(
                sid, frame.header["body"], frame.header["finished_at"], frame.header.get("key_fingerprint")
            )
        case FrameKind.DROP:
            _forget(found, sid)
            found.finished.pop(sid, None)
        case _:
            found.catalog.add(sid, name, extent.start)


def _forget(found: Recovered, sid: str) -> None:
    found.catalog.forget(sid)
    found.counts.pop(sid, None)
    found.damaged.pop(sid, None)
