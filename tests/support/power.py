"""What a loss of power does to a journal, on top of what a kill does: all that was not synced is gone."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from adapter.storage.segments import SegmentName

_MARK = struct.Struct("<QQ")
"""Number of the segment, and the offset in it, up to which everything was synced (``adapter.storage.syncing``)."""


def lose_page_cache(segments: Path, slot: int = 0) -> int:
    """Cut a slot's newest segments back to what its last sync covered; gives how many bytes went."""
    mark, lost = segments / f"{slot:02d}.synced", 0
    number, offset = _MARK.unpack(mark.read_bytes()) if mark.exists() and mark.stat().st_size else (0, 0)
    for path in segments.glob("*.journal"):
        name = SegmentName.parse(path.name)
        # A file that a compaction made was synced before it had its name.
        if name is None or name.slot != slot or name.first != name.last or name.last < number:
            continue
        size = path.stat().st_size
        kept = min(size, offset if name.last == number else 0)
        lost += size - kept
        os.truncate(path, kept)
    return lost
