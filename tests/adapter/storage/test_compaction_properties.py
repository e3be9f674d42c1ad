"""Any life of sessions, with compactions and restarts anywhere in it: who writes and who reads agree, and nothing is lost."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.recorder import JournalRecorder
from adapter.storage.recovery import Recovered, read, recover
from tests.adapter.storage.test_compaction import held, quiet, recording, turn

SIDS = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.tuples(st.sampled_from(["turn", "turn", "turn", "deliver", "finish", "drop", "forget"]), SIDS)
    | st.tuples(st.sampled_from(["compact", "compact and go on", "restart"]), st.just("")),
    min_size=8,
    max_size=40,
)


class Life:
    """What was recorded: of each live session the number of its turns, of each finished one the answer."""

    def __init__(self) -> None:
        self.live: dict[str, int] = {}
        self.finished: dict[str, bytes] = {}

    def step(self, record: JournalRecorder, what: str, sid: str) -> None:
        if sid in self.finished and what not in ("drop", "forget"):
            return
        if what == "turn":
            if sid not in self.live:
                record.opened(sid, {})
            self.live[sid] = self.live.get(sid, 0) + 1
            turn(record, sid, self.live[sid], delivered=False)
        elif what == "deliver" and sid in self.live:
            record.delivered(sid, self.live[sid])
        elif what == "finish" and sid in self.live:
            self.finished[sid] = f"{sid} after {self.live.pop(sid)}".encode()
            record.finished(sid, {}, 1.0, self.finished[sid])
        elif what == "drop" and (sid in self.live or sid in self.finished):
            record.dropped(sid)
            self.live.pop(sid, None)
            self.finished.pop(sid, None)
        elif what == "forget" and self.finished.pop(sid, None):
            record.forgotten(sid)

    def agrees(self, found: Recovered) -> None:
        content = held(found)
        turns = {sid: sum(frame[3] is not None for frame in frames) for sid, (frames, _) in content["live"].items()}
        assert turns == self.live
        assert self.finished.items() <= content["answers"].items(), "one that was forgotten may be there again"


@settings(max_examples=30, deadline=None)
@given(STEPS)
def test_any_life(steps: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_live(Path(folder), steps))


async def _live(folder: Path, steps: list[tuple[str, str]]) -> None:
    life, rest = Life(), list(steps)
    while True:
        async with recording(folder, 700) as record:
            compactor = quiet(record)
            for sid in recover(folder, 0).finished.keys() - life.finished.keys():
                record.forgotten(sid)  # as a server does that counts them anew
            while rest and rest[0][0] != "restart":
                what, sid = rest.pop(0)
                if not what.startswith("compact"):
                    life.step(record, what, sid)
                elif len(record.journal.closed) > 1:
                    running = asyncio.create_task(compactor.run())
                    while what.endswith("go on") and rest and not rest[0][0].startswith(("compact", "restart")):
                        await asyncio.sleep(0)
                        life.step(record, *rest.pop(0))
                    await running
            on_disk = read(folder, 0)
            life.agrees(on_disk)
            life.agrees(Recovered(record.catalog, record.counts, on_disk.finished))
            forgotten = on_disk.finished.keys() - life.finished.keys()
            for sid in forgotten:
                on_disk.catalog.forget(sid)
            assert record.catalog.live_bytes == on_disk.catalog.live_bytes
        if not rest:
            return
        rest.pop(0)
