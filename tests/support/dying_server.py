"""Servers that kill themselves (SIGKILL) at a chosen point. Run as a module it forks one for each line that it reads.

In: ``{"journal": FOLDER, "point": NAME or null, "settings": {...}}``. Out, from the server: ``{"pid": N, "url": URL}``. Loading the
tokenizer takes seconds; forking does not.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapter.config import Config
from adapter.render.prompt import Renderer
from adapter.storage import compaction
from adapter.storage.frames import Frame, FrameKind
from adapter.storage.journal import Journal
from adapter.storage.merging import MergedSegment
from adapter.types import Durability
from engine.types import GenerateRequest, TokenChunk
from tests.support.assets import tokenizer_dir
from tests.support.engine import Answer, FakeEngine
from tests.support.server import serving

TURN = 2
"""The turn of a session at which the points of a turn are."""

END = 151645


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str, when: Callable[..., bool] = lambda *_: True) -> None:
    real = getattr(owner, name)

    def act(*arguments: Any) -> Any:
        if when(*arguments):
            die()
        return real(*arguments)

    setattr(owner, name, act)


def after(owner: Any, name: str, when: Callable[..., bool] = lambda *_: True) -> None:
    real = getattr(owner, name)

    def act(*arguments: Any) -> Any:
        result = real(*arguments)
        if when(*arguments):
            die()
        return result

    setattr(owner, name, act)


def after_sync_of(is_it: Callable[[Journal, Frame], bool]) -> None:
    """When the frame is on the disk, and nobody has been told."""
    append, synced = Journal.append, Journal.synced
    positions: list[int] = []

    def noting(journal: Journal, frame: Frame) -> Any:
        extent = append(journal, frame)
        if is_it(journal, frame):
            positions.append(journal.written)
        return extent

    async def dying(journal: Journal, position: int) -> None:
        await synced(journal, position)
        if positions and position >= positions[0]:
            die()

    Journal.append, Journal.synced = noting, dying  # type: ignore[method-assign]


def is_turn(_: Journal, frame: Frame) -> bool:
    return frame.kind == FrameKind.TURN and frame.header["number"] == TURN


def is_finish(_: Journal, frame: Frame) -> bool:
    return frame.kind == FrameKind.FINISH


def is_rotation(_: Journal, number: int) -> bool:
    return number > 1


def begin_and_die(journal: Journal, number: int) -> bool:
    """With the new file there, and nothing in it."""
    if number > 1:
        (journal.folder / f"00-{number:08d}.journal").touch()
    return number > 1


def delete_some_and_die(folder: Path, names: frozenset[Any]) -> bool:
    for name in sorted(names)[::2]:
        (folder / str(name)).unlink()
    return True


POINTS: dict[str, Callable[[], None]] = {
    "before the append of a turn": lambda: before(Journal, "append", is_turn),
    "after the append of a turn": lambda: after(Journal, "append", is_turn),
    "after the sync of a turn": lambda: after_sync_of(is_turn),
    "before the append of a finish": lambda: before(Journal, "append", is_finish),
    "after the append of a finish": lambda: after(Journal, "append", is_finish),
    "after the sync of a finish": lambda: after_sync_of(is_finish),
    "before a new segment": lambda: before(Journal, "_begin", is_rotation),
    "a new segment without its header": lambda: before(Journal, "_begin", begin_and_die),
    "after a new segment is begun": lambda: after(Journal, "_begin", is_rotation),
    "a compaction begins": lambda: before(MergedSegment, "add"),
    "a compaction copies": lambda: after(MergedSegment, "add"),
    "a compaction has copied": lambda: before(MergedSegment, "put"),
    "a compaction has put its file": lambda: after(MergedSegment, "put"),
    "a compaction deletes": lambda: before(compaction, "_delete", delete_some_and_die),
    "a compaction has deleted": lambda: after(compaction, "_delete"),
}


@dataclass
class Counting(FakeEngine):
    """Answers ``reply 1``, ``reply 2``, ..., in two pieces."""

    encode: Callable[[str], list[int]] = field(default=lambda text: [])

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        self.answers.append(Answer([self.encode("reply"), [*self.encode(f" {len(self.requests) + 1}"), END]]))
        return super().generate(request)


async def run(renderer: Renderer, order: dict[str, Any]) -> None:
    if order["point"] is not None:
        POINTS[order["point"]]()
    settings = dict(order["settings"])
    config = Config(
        served_model_name="slime-actor",
        journal=Path(order["journal"]),
        durability=Durability(settings.pop("durability", "fsync")),
        **settings,
    )
    engine = Counting(encode=lambda text: renderer.tokenizer.encode(text, add_special_tokens=False).ids)
    async with serving(engine, renderer, config) as server:
        print(json.dumps({"pid": os.getpid(), "url": server.url}), flush=True)
        await asyncio.Event().wait()


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    renderer = Renderer.load(tokenizer_dir("qwen2_5"))
    for line in sys.stdin:
        if os.fork() == 0:
            try:
                asyncio.run(run(renderer, json.loads(line)))
            finally:
                os._exit(1)


if __name__ == "__main__":
    main()
