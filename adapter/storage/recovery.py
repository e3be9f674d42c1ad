"""Reading a slot's journal at the start of its worker: which sessions are live, which are finished, and what is damaged.

Every frame is read once and its checksum looked at; sessions are rebuilt from their frames when they are first asked for.

- A torn frame at the end of a file was never acknowledged. It is cut, and reported.
- What cannot be read anywhere else is damage. It is reported with file and offset; sessions that had frames there cannot be rebuilt
  past it, and are refused, while all others go on. Frames are numbered within their session, so a missing one shows whoever it
  belonged to. Nothing damaged is ever cut or compacted: `rollserve journal repair` is for that.
- What a compaction left when the process stopped in the middle of it is removed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapter.storage.catalog import Catalog, Wire
from adapter.storage.errors import StorageError
from adapter.storage.frames import Extent, Frame, FrameKind
from adapter.storage.salvage import Damage, scan
from adapter.storage.segments import SegmentFile, SegmentName, cut_torn_tail, remove_leftovers, segments


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
    kinds: Counter[int] = field(default_factory=Counter)
    """Frames by kind, dead ones included."""
    torn: dict[Path, int] = field(default_factory=dict)
    """Files that end within a frame, and where it begins."""
    damages: list[Damage] = field(default_factory=list)
    """Stretches of files that cannot be read."""
    reports: list[str] = field(default_factory=list)
    """What is torn or damaged, for the log."""
    next_segment: int = 1
    epoch: int = 1
    """Of the start that reads this."""


def recover(folder: Path, slot: int) -> Recovered:
    """Read all segments of a slot, cut what is torn, remove what compaction left. Raises: StorageError."""
    found = read(folder, slot)
    try:
        for path, offset in found.torn.items():
            cut_torn_tail(path, offset)
        remove_leftovers(folder, slot)
    except OSError as error:
        raise StorageError(f"cannot write {folder}: {error.strerror or error}") from error
    return found


def read(folder: Path, slot: int) -> Recovered:
    """The same, and everything stays as it is. Raises: StorageError."""
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
    for item in scan(file):
        take(found, name, item)
    found.epoch = max(found.epoch, file.epoch() + 1)
    if file.torn_at is not None:
        found.torn[path] = file.torn_at
        found.reports.append(f"{path}: a torn frame of {file.size - file.torn_at} bytes at offset {file.torn_at}")


def take(found: Recovered, name: SegmentName, item: tuple[Extent, Frame] | Damage) -> None:
    """Add what was read next."""
    if isinstance(item, Damage):
        found.damages.append(item)
        found.reports.append(str(item))
        for sid, number in item.lost:
            # Another number: the name is damaged too, and another's. The lost frame of a finished session dropped it.
            if number == found.counts.get(sid, 0) and sid not in found.finished:
                found.damaged[sid] = str(item)
                found.counts[sid] = number + 1
                found.catalog.hold(sid)
        return
    extent, frame = item
    found.kinds[frame.kind] += 1
    if frame.sid is not None:
        _take_frame(found, name, extent, frame, frame.sid)


def _take_frame(found: Recovered, name: SegmentName, extent: Extent, frame: Frame, sid: str) -> None:
    expected, number = found.counts.get(sid, 0), frame.header["n"]
    # What is left of a session that is over may be its last frame alone.
    ends = frame.kind in (FrameKind.FINISH, FrameKind.DROP)
    if number != expected and not ends and sid not in found.damaged:
        found.damaged[sid] = f"frame {expected} of session {sid!r} is missing before offset {extent.start} of {name}"
        found.reports.append(found.damaged[sid])
    found.counts[sid] = number + 1
    match frame.kind:
        case FrameKind.FINISH:
            _forget(found, sid)
            found.catalog.finish(sid, name, extent)
            found.finished[sid] = FinishedSession(
                sid, frame.header["body"], frame.header["finished_at"], frame.header.get("key_fingerprint")
            )
        case FrameKind.DROP:
            _forget(found, sid)
        case _:
            found.finished.pop(sid, None)
            found.catalog.add(sid, name, extent, Wire.of(frame))
            if frame.kind == FrameKind.DELIVERED:
                found.catalog.delivered(sid, frame.header["number"])


def _forget(found: Recovered, sid: str) -> None:
    found.finished.pop(sid, None)
    found.catalog.forget(sid)
    found.counts.pop(sid, None)
    found.damaged.pop(sid, None)
