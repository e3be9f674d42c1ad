"""A compaction that stops at each of its steps: the journal is readable, and nothing is left over at the next start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from adapter.storage import compaction
from adapter.storage.merging import MergedSegment
from adapter.storage.recovery import read, recover
from adapter.storage.segments import SegmentName, segments
from tests.adapter.storage.test_compaction import files, held, play, quiet, recording, turn


class Crash(BaseException):
    """The process is gone: nothing behind it runs, no file is cleaned up."""


def _crash(*_: object) -> None:
    raise Crash


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        pytest.param(MergedSegment, "add", False, id="before anything is copied"),
        pytest.param(MergedSegment, "add", True, id="while it is copied"),
        pytest.param(MergedSegment, "_sync", False, id="before the copy is synced"),
        pytest.param(MergedSegment, "_sync", True, id="before it is renamed"),
        pytest.param(MergedSegment, "put", True, id="before the catalog knows"),
        pytest.param(compaction, "_delete", False, id="before anything is deleted"),
        pytest.param(compaction, "_delete", True, id="behind it all"),
    ],
)
async def test_a_crash_anywhere_leaves_the_journal_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, after: bool
) -> None:
    async with recording(tmp_path) as record:
        compactor = quiet(record)
        play(record)
        before = held(recover(tmp_path, 0))
        monkeypatch.setattr(owner, name, _then_crash(getattr(owner, name)) if after else _crash)
        monkeypatch.setattr(MergedSegment, "close", lambda self: self._file.close())
        with pytest.raises(Crash):
            await compactor.run()
    monkeypatch.undo()
    assert held(read(tmp_path, 0)) == before
    assert held(recover(tmp_path, 0)) == before
    names = [SegmentName.parse(name) for name in files(tmp_path)]
    assert names == segments(tmp_path), "nothing is left over"
    async with recording(tmp_path) as record:
        compactor = quiet(record)
        turn(record, "s0", 77)
        await compactor.run()
        assert recover(tmp_path, 0).counts["s0"] == before["counts"]["s0"] + 2


def _then_crash(real: Callable[..., object]) -> Callable[..., None]:
    def act(*arguments: object) -> None:
        real(*arguments)
        raise Crash

    return act


async def test_half_of_the_covered_files_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(folder: Path, names: frozenset[SegmentName]) -> None:
        for name in sorted(names)[: len(names) // 2]:
            (folder / str(name)).unlink()
        raise Crash

    async with recording(tmp_path) as record:
        compactor = quiet(record)
        play(record)
        before = held(recover(tmp_path, 0))
        monkeypatch.setattr(compaction, "_delete", half)
        with pytest.raises(Crash):
            await compactor.run()
    assert held(recover(tmp_path, 0)) == before
