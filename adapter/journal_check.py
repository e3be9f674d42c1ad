"""What a journal holds and whether it is sound, beside a running server or without one; nothing is changed.

Every frame of every file is read. Then each live session is rebuilt as the server would, and each answer of a finished one read, so
damage shows that no checksum tells: frames that do not fit together, sessions in the wrong slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from adapter.ownership import Ownership
from adapter.restoring import Terms, restore_trajectory
from adapter.session_bodies import FinishRequest, SessionSettings
from adapter.storage.errors import StorageError
from adapter.storage.layout import Layout, read_layout
from adapter.storage.recovery import Recovered, read
from adapter.storage.segments import SegmentGone, segments
from adapter.trajectory import Trajectory

ATTEMPTS = 5
"""A server that compacts its journal meanwhile removes files; then the slot is read anew."""

_UNREADABLE = (StorageError, ValueError, LookupError, StopIteration, TypeError, AttributeError)
"""What reading a session's frames may raise."""


@dataclass(slots=True)
class JournalReport:
    """What was found. ``kinds``: frames by kind; ``needed``: bytes that a compaction would keep."""

    layout: Layout
    files: int = 0
    size: int = 0
    needed: int = 0
    kinds: Counter[int] = field(default_factory=Counter)
    live: int = 0
    finished: int = 0
    torn: list[str] = field(default_factory=list)
    """Tails that the next start cuts: nothing in them was acknowledged."""
    damage: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.damage


def laid_out(folder: Path) -> Layout:
    """Raises: StorageError, if there is no journal."""
    layout = read_layout(folder)
    if layout is None:
        raise StorageError(f"there is no journal in {folder}")
    return layout


def check_journal(folder: Path) -> JournalReport:
    """Read all of the current generation. Raises: StorageError, if there is no journal or it is none of ours."""
    report = JournalReport(laid_out(folder))
    inside = report.layout.segments(folder)
    for slot in sorted({*range(report.layout.workers), *(name.slot for name in segments(inside))}):
        for attempt in range(ATTEMPTS):
            try:
                found = read(inside, slot)
                problems = _problems(found, Ownership(slot, report.layout.workers).owner)
                _add(report, inside, found, problems)
                break
            except SegmentGone:
                if attempt + 1 == ATTEMPTS:
                    raise
    return report


def _add(report: JournalReport, folder: Path, found: Recovered, problems: list[str]) -> None:
    names = [name for name in segments(folder) if name.slot == found.catalog.slot]
    report.files += len(names)
    report.size += sum((folder / str(name)).stat().st_size for name in names if (folder / str(name)).exists())
    report.needed += found.catalog.live_bytes
    report.kinds += found.kinds
    report.live += len(list(found.catalog))
    report.finished += len(found.finished)
    report.torn += [f"{path}: offset {offset}" for path, offset in found.torn.items()]
    report.damage += [*map(str, found.damages), *problems]


def _problems(found: Recovered, owner: Callable[[str], int]) -> list[str]:
    """Raises: SegmentGone."""
    problems = [f"session {sid!r} is damaged: {reason}" for sid, reason in found.damaged.items()]
    for sid in found.catalog.names():
        if owner(sid) != found.catalog.slot:
            problems.append(f"session {sid!r} lies in slot {found.catalog.slot}, but slot {owner(sid)} owns it")
        if sid in found.damaged:
            continue
        try:
            _rebuild(found, sid)
        except SegmentGone:
            raise
        except _UNREADABLE as error:
            problems.append(f"session {sid!r} cannot be rebuilt: {error}")
    return problems


def _rebuild(found: Recovered, sid: str) -> None:
    if sid in found.finished:
        FinishRequest.parse(found.finished[sid].body)
        last = found.catalog.last_frame(sid)
        orjson.loads(b"" if last is None else last.arrays["answer"].tobytes())
        return
    frames = found.catalog.frames(sid)
    terms = Terms.read(next(frames))
    SessionSettings.parse(terms.settings)
    restore_trajectory(Trajectory(terms.fork_threshold_tokens, require_log_probs=True, policy=terms.policy), frames)
