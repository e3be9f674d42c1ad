"""Repairing a journal: of a damaged file, what can be read is kept, and the file as it was stays beside it.

The frames are copied into a new file, which takes the damaged one's place when it is on the disk; a crash before leaves everything
as it was. Sessions with a frame missing in the middle are still refused afterwards, as their numbering shows; one that lost its
last frames is there again without them. Torn frames at the end of files are left to the server's next start.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from adapter.storage.atomic import sync_folder
from adapter.storage.errors import StorageError
from adapter.storage.frames import FileHeader
from adapter.storage.salvage import Damage, scan
from adapter.storage.segments import SegmentFile, SegmentName, part_path, segments

DAMAGED = ".damaged"
"""Ends the name of a damaged file that was kept."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One file: ``kept`` is the damaged one as it was; ``frames`` could be read."""

    path: Path
    kept: Path
    frames: int
    damages: tuple[Damage, ...]


def repair(folder: Path) -> Iterator[Repair]:
    """Repair the segments in a folder that nobody uses, one by one. Raises: StorageError."""
    for name in segments(folder):
        file = SegmentFile(folder / str(name))
        damages = () if file.is_empty else tuple(item for item in scan(file) if isinstance(item, Damage))
        if not damages:
            continue
        try:
            yield _repair(file, name, damages)
        except OSError as error:
            raise StorageError(f"cannot repair {file.path}: {error.strerror or error}") from error


def _repair(file: SegmentFile, name: SegmentName, damages: tuple[Damage, ...]) -> Repair:
    path, part, kept = file.path, part_path(file.path), _unused(file.path)
    with part.open("wb") as copy:
        part.chmod(0o600)
        copy.write(FileHeader(name.slot, file.epoch()).encode())
        frames = _copy_good(file, copy)
        copy.flush()
        os.fsync(copy.fileno())
    kept.hardlink_to(path)
    sync_folder(path.parent)
    part.replace(path)
    sync_folder(path.parent)
    return Repair(path, kept, frames, damages)


def _copy_good(file: SegmentFile, copy: BinaryIO) -> int:
    frames = 0
    for item in scan(file):
        if not isinstance(item, Damage):
            copy.write(file.bytes_of(item[0]))
            frames += 1
    return frames


def _unused(path: Path) -> Path:
    """A name for the damaged file; it may have been damaged before."""
    number, kept = 1, path.with_name(path.name + DAMAGED)
    while kept.exists():
        number += 1
        kept = path.with_name(f"{path.name}.{number}{DAMAGED}")
    return kept
