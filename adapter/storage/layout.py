"""The journal's folder: which generation of segments counts, and for how many workers it was written.

    <journal>/layout.json       {"version": 1, "workers": N, "generation": G}
    <journal>/<G>/*.journal     segments of N slots

Each slot's segments hold the sessions that its worker owns, so another number of workers needs another division. It is made before
the workers start: every session's frames are copied into the segments of the slot that owns it now, as a new generation beside the
old one, and ``layout.json`` is put in place when all of it is on the disk. A crash before that leaves the old generation as it was.
What belongs to sessions that are over is not copied. A journal with damage in it is not divided: the copy would not show it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from adapter.storage.atomic import sync_folder, write_atomically
from adapter.storage.errors import StorageError
from adapter.storage.frames import FileHeader
from adapter.storage.recovery import Recovered, recover
from adapter.storage.repair import DAMAGED
from adapter.storage.segments import SegmentName

VERSION = 1
LAYOUT = "layout.json"

Owner = Callable[[str], int]
"""The slot that owns a session."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What ``layout.json`` says."""

    workers: int
    generation: int
    version: int = VERSION

    def segments(self, folder: Path) -> Path:
        return folder / f"{self.generation:06d}"


def read_layout(folder: Path) -> Layout | None:
    """None for a folder without a journal. Raises: StorageError."""
    path = folder / LAYOUT
    try:
        document = json.loads(path.read_bytes())
        layout = Layout(**document)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise StorageError(f"cannot read {path}: {error}") from error
    if layout.version != VERSION:
        raise StorageError(f"{path} has version {layout.version}; this server reads version {VERSION}")
    return layout


def prepare(folder: Path, workers: int, owner: Owner, tell: Callable[[str], None]) -> Layout:
    """The layout for so many workers, made if there is none, divided anew if it was for another number.

    Nobody else may use the folder meanwhile. Raises: StorageError.
    """
    layout = read_layout(folder)
    try:
        if layout is None:
            return _put(folder, Layout(workers, 1))
        _remove_others(folder, layout)
        if layout.workers == workers:
            return layout
        tell(f"dividing the journal's sessions anew: {layout.workers} workers before, {workers} now")
        return _divide(folder, layout, workers, owner)
    except OSError as error:
        raise StorageError(f"cannot write the journal in {folder}: {error.strerror or error}") from error


def _put(folder: Path, layout: Layout) -> Layout:
    layout.segments(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
    sync_folder(folder)
    document = json.dumps(asdict(layout)).encode()
    write_atomically(folder / LAYOUT, lambda file: file.write(document))
    return layout


def _divide(folder: Path, old: Layout, workers: int, owner: Owner) -> Layout:
    new = Layout(workers, old.generation + 1)
    target = new.segments(folder)
    target.mkdir(mode=0o700)
    with ExitStack() as stack:
        files = [stack.enter_context(_segment(target, slot)) for slot in range(workers)]
        for slot in range(old.workers):
            for sid, frame in _kept(_recovered(folder, old, slot)):
                files[owner(sid)].write(frame)
        for file in files:
            file.flush()
            os.fsync(file.fileno())
    sync_folder(target)
    _put(folder, new)
    _remove_others(folder, new)
    return new


def _recovered(folder: Path, layout: Layout, slot: int) -> Recovered:
    """Raises: StorageError, also for one that is damaged."""
    found = recover(layout.segments(folder), slot)
    if found.damages:
        raise StorageError(
            f"{found.damages[0]}; with it repaired, or with {layout.workers} workers as before, the server starts"
        )
    return found


def _segment(folder: Path, slot: int) -> BinaryIO:
    file = (folder / str(SegmentName(slot, 1, 1))).open("xb")
    file.write(FileHeader(slot, 1).encode())
    return file


def _kept(found: Recovered) -> Iterator[tuple[str, bytes]]:
    """The frames that are still needed, session by session."""
    for sid in found.catalog:
        for frame in found.catalog.frames(sid):
            yield sid, frame.encode()
    for sid in found.finished:
        last = found.catalog.last_frame(sid)
        if last is not None:
            yield sid, last.encode()


def _remove_others(folder: Path, layout: Layout) -> None:
    """Generations that do not count: of a division that was not finished, or of before the last one.

    Damaged files that a repair kept go along.
    """
    for path in folder.iterdir():
        if path.is_dir() and path.name.isdecimal() and path != layout.segments(folder):
            for kept in path.glob(f"*{DAMAGED}"):
                kept.rename(layout.segments(folder) / f"{path.name}-{kept.name}")
            shutil.rmtree(path)
