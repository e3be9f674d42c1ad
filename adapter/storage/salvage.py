"""Reading a segment past what is damaged in it.

Behind a frame that cannot be read the next one is looked for whose checksum is right: 64 bits of xxh3 do not come right by chance,
and the bytes of a frame cannot be chosen by a client (JSON escapes control characters, ids are below the size of the vocabulary).
What lies between is a ``Damage``; which frames of which sessions it held is told by what can still be read of their headers.

**Torn or damaged.** Only what no acknowledgement can have been given for counts as torn: the last frame of a file that is not there
to its end, or that was never written out (a file system may show such a sector as zeros). If a good frame follows, or the frame is
whole but for its length, it is damage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from adapter.storage.frames import FILE_HEADER_BYTES, LENGTH_BYTES, MAX_FRAME_BYTES, Extent, Frame
from adapter.storage.segments import DamagedSegment, SegmentFile

SECTOR_BYTES = 512
"""The least that a disk writes."""

_WHOSE = rb'\{"sid":("(?:[^"\\]|\\.){0,2000}"),"n":(\d{1,12})'
_FIRST = re.compile(rb"(?s).{20}" + _WHOSE)
_OTHERS = re.compile(rb"(?s).\x00\x00\x00.{12}" + _WHOSE)
"""The beginning of a header, behind the kind, the checksum and the header's length."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of a file that cannot be read. ``lost``: session and number of the frames in it, as far as that can be told."""

    path: Path
    extent: Extent
    reason: str
    lost: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return str(DamagedSegment(self.path, self.extent.start, self.reason))


def scan(file: SegmentFile) -> Iterator[tuple[Extent, Frame] | Damage]:
    """All that can be read of a file, and what cannot, in order; then ``file.torn_at`` is known.

    Raises: StorageError, for a file of another version.
    """
    at = FILE_HEADER_BYTES
    try:
        file.header()
    except DamagedSegment as error:
        at = _next_good(file, 0) or file.size
        yield Damage(file.path, Extent(0, at), error.reason, _frames_in(file, Extent(0, at)))
    while at < file.size:
        extent = file.extent_at(at)
        try:
            frame = None if extent is None else file.frame(extent)
            reason = "the length is wrong"
        except DamagedSegment as error:
            frame, reason = None, error.reason
        if extent is not None and frame is not None:
            yield extent, frame
            at = extent.end
            continue
        end = _next_good(file, at)
        if end is None and is_torn(file, at):
            file.torn_at = at
            return
        lost = Extent(at, (end or (file.size if extent is None else extent.end)) - at)
        yield Damage(file.path, lost, reason, _frames_in(file, lost))
        at = lost.end


def is_torn(file: SegmentFile, at: int) -> bool:
    """Whether what begins at ``at``, behind which nothing can be read, was never written to its end."""
    rest, length, extent = Extent(at, file.size - at), file.length_at(at), file.extent_at(at)
    if length is None:
        return True
    if extent is not None:
        sector = max(at, (extent.end - 1) // SECTOR_BYTES * SECTOR_BYTES)
        return extent.end == file.size and _is_blank(file, Extent(sector, extent.end - sector))
    if length == 0 or length > MAX_FRAME_BYTES:
        return _is_blank(file, rest)
    return at + LENGTH_BYTES + length > file.size and not file.is_whole(at)


def _is_blank(file: SegmentFile, extent: Extent) -> bool:
    return not bytes(file.bytes_of(extent)).strip(b"\0")


def _next_good(file: SegmentFile, at: int) -> int | None:
    return next((start for start in file.candidates(at + 1) if file.is_good(file.extent_at(start))), None)


def _frames_in(file: SegmentFile, extent: Extent) -> tuple[tuple[str, int], ...]:
    stretch, found = file.bytes_of(extent), []
    first = _FIRST.match(stretch)
    for match in [*([first] if first else []), *_OTHERS.finditer(stretch, first.end() if first else 0)]:
        try:
            found.append((str(json.loads(match[1])), int(match[2])))
        except ValueError:  # damaged itself
            continue
    return tuple(found)
