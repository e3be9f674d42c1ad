"""What stays in memory of turns that are over: of a session that ended nothing, of one that is still open its content.

    python -m loadtest.bench_growth [--turns N] [--trace] [--part over|endless] [--tokenizer DIR]

A whole server in this process, in front of an engine that answers at once, with a journal in a temporary folder.

    over      sessions of a few short turns, in all protocols, are opened; finished, dropped, or left until their time is over
    endless   one session has turn after turn, each a conversation of its own, and is spilled to the journal when idle

What is bounded is bounded low, and full before the first look. At each look everything idle has been let go of and the garbage
collected; then the blocks that Python has allocated are counted (``sys.getallocatedblocks``), and the resident memory. A server
that keeps anything of a turn has blocks in proportion to its turns; less than ``GOAL_BLOCKS`` a turn is counters and noise.
``--trace`` names the lines of code whose memory grew (tracemalloc), at a third of the speed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import uvloop

from adapter.config import Config
from adapter.journaling import prepared, recording
from adapter.render.prompt import Renderer
from adapter.served import Loaded
from adapter.serving import WorkerPlace, models_server
from adapter.sessions import Sessions
from adapter.types import Durability
from engine.assets import demo_model_dir
from engine.types import EngineInfo, Finished, FinishReason, GenerateRequest, LogProbMode, TokenChunk
from loadtest.figures import Figure, Measured
from loadtest.program import Options, run_benchmark, say

TURNS, QUICK_TURNS = 8_000, 64
WARM_UP_TURNS, QUICK_WARM_UP_TURNS = 4_000, 32
TURNS_PER_SESSION = 4
LOOKS = 4
LINES = 15
"""Lines of code, and types, that are named."""
GOAL_BLOCKS = 0.1

BOUNDS: dict[str, Any] = {
    "keep_finished": 50,
    "replay_total_bytes": 1024 * 1024,
    "replay_session_bytes": 64 * 1024,
    "replay_keep_s": 1.0,
    "journal_segment_bytes": 4 * 1024 * 1024,
}
TTL_S = 3.0
TEXT = {"role": "user", "content": "What is in this folder?"}
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/messages", {"messages": [TEXT], "stream": True}),
    ("/v1/messages", {"messages": [TEXT]}),
    ("/v1/chat/completions", {"messages": [TEXT], "stream": True}),
    ("/v1/chat/completions", {"messages": [TEXT], "n": 2, "logprobs": True}),
    ("/v1/responses", {"input": "What is in this folder?", "stream": True, "store": False}),
    (
        "/v1beta/models/rollserve:streamGenerateContent?alt=sse",
        {"contents": [{"role": "user", "parts": [{"text": "What is in this folder?"}]}]},
    ),
    ("/v1/messages", {"messages": "not messages"}),
)
IDLE_S = 60.0
"""Longest that is waited for a server to let go of what is idle."""


@dataclass
class InstantEngine:
    """Says the same eight tokens in two chunks."""

    info: EngineInfo = field(
        default_factory=lambda: EngineInfo(
            model="instant", log_prob_mode=LogProbMode.RAW, max_seq_len=4096, vocab_size=40_000, weight_version=1
        )
    )

    async def connect(self) -> None: ...

    async def check_ready(self) -> None: ...

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        for number in range(2):
            ids, log_probs = np.arange(1000, 1004, dtype=np.int32), np.full(4, -0.5, np.float32)
            yield TokenChunk(ids, log_probs, 1, Finished(FinishReason.LENGTH, 0) if number else None)


@dataclass(frozen=True, slots=True)
class Server:
    """A server in this process, and a client of it."""

    http: aiohttp.ClientSession
    sessions: Sessions
    journal: Path

    async def call(self, method: str, path: str, body: Any = None) -> None:
        async with self.http.request(method, path, json=body) as response:
            await response.read()
            if response.status >= 500:
                raise SystemExit(f"{method} {path}: {response.status}")

    async def idle(self) -> None:
        """Until no session is in memory. Raises: TimeoutError."""
        async with asyncio.timeout(IDLE_S):
            while self.sessions.live():  # noqa: ASYNC110 - nothing says when a sweep is over
                await asyncio.sleep(0.1)


@asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[Server]:
    """``folder`` has the tokenizer; ``settings`` are fields of ``Config``."""
    with tempfile.TemporaryDirectory(prefix="rollserve-bench-") as journal:
        config = Config(port=0, durability=Durability.OS, journal=Path(journal), **BOUNDS, **settings)
        with prepared(config):
            loaded = Loaded(config, InstantEngine(), Renderer.load(folder))
            async with (
                recording(config) as recorded,
                models_server([loaded], recorded, None, WorkerPlace()) as server,
                aiohttp.ClientSession(server.url) as http,
            ):
                yield Server(http, server.state.sessions, Path(journal))


async def short_session(server: Server, number: int) -> int:
    """One session from its beginning to its end; gives its requests."""
    sid = f"growth-{number}"
    await server.call("POST", "/v1/sessions", {"sid": sid})
    for place in range(TURNS_PER_SESSION):
        path, body = REQUESTS[(number + place) % len(REQUESTS)]
        await server.call("POST", f"/s/{sid}{path}", body)
    match number % 4:
        case 0:
            await server.call("DELETE", f"/v1/sessions/{sid}")
        case 1:
            pass  # until its time is over
        case _:
            await server.call("POST", f"/v1/sessions/{sid}/finish", {})
    return TURNS_PER_SESSION


async def endless_turn(server: Server, number: int) -> int:
    path, body = REQUESTS[number % 3]
    await server.call("POST", f"/s/endless{path}", body)
    return 1


Work = Callable[[Server, int], Awaitable[int]]


@dataclass(slots=True)
class Looks:
    """What was there at each look."""

    blocks: list[int] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)
    traced: list[int] = field(default_factory=list)
    journal: list[int] = field(default_factory=list)
    types: list[Counter[str]] = field(default_factory=list)
    lines: list[tracemalloc.Snapshot] = field(default_factory=list)

    def look(self, server: Server) -> None:
        gc.collect()
        self.blocks.append(sys.getallocatedblocks())
        self.resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
        self.journal.append(sum(file.stat().st_size for file in server.journal.rglob("*") if file.is_file()))
        self.types.append(Counter(type(each).__name__ for each in gc.get_objects()))
        if tracemalloc.is_tracing():
            self.traced.append(tracemalloc.get_traced_memory()[0])
            skipped = [tracemalloc.Filter(False, tracemalloc.__file__), tracemalloc.Filter(False, __file__)]
            self.lines.append(tracemalloc.take_snapshot().filter_traces(skipped))

    def grown(self, turns: int) -> dict[str, Any]:
        """Types by objects, and lines by bytes, from the first look to the last, a turn."""
        types = Counter(self.types[-1])
        types.subtract(self.types[0])
        lines = self.lines[-1].compare_to(self.lines[0], "lineno") if self.lines else []
        lines.sort(key=lambda line: -line.size_diff)
        return {
            "types": [[name, round(count / turns, 4)] for name, count in types.most_common(LINES)],
            "lines": [[str(line.traceback), round(line.size_diff / turns, 2)] for line in lines[:LINES]],
        }


async def watch(server: Server, work: Work, warm_up: int, turns: int, label: str) -> tuple[Looks, float]:
    """``turns`` of ``work`` behind ``warm_up``, with looks before, in between and after; and the seconds of a turn."""
    looks, done = Looks(), 0
    for target in (warm_up, *(warm_up + turns * look // LOOKS for look in range(1, LOOKS + 1))):
        began, before = time.perf_counter(), done
        while done < target:
            done += await work(server, done)
        rate = (time.perf_counter() - began) / max(1, done - before)
        await server.idle()
        looks.look(server)
        say(
            f"{label}: {done} turns, {looks.blocks[-1]} blocks, {looks.resident[-1] / 1e6:.1f} MB, {1 / rate:.0f} turns/s"
        )
    return looks, rate


async def over(folder: Path, warm_up: int, turns: int) -> tuple[list[Figure], dict[str, Any]]:
    async with serving(folder, session_ttl_s=TTL_S) as server:
        looks, rate = await watch(server, short_session, warm_up, turns, "over")
    return _report("over", looks, turns, rate)


async def endless(folder: Path, warm_up: int, turns: int) -> tuple[list[Figure], dict[str, Any]]:
    async with serving(folder, session_idle_s=1.0) as server:
        await server.call("POST", "/v1/sessions", {"sid": "endless"})
        looks, rate = await watch(server, endless_turn, warm_up, turns, "endless")
    return _report("endless", looks, turns, rate)


def _report(name: str, looks: Looks, turns: int, rate: float) -> tuple[list[Figure], dict[str, Any]]:
    figures = [
        Figure(f"{name}: blocks", (looks.blocks[-1] - looks.blocks[0]) / turns, "a turn", GOAL_BLOCKS),
        Figure(f"{name}: resident", (looks.resident[-1] - looks.resident[0]) / turns, "B a turn"),
        Figure(f"{name}: journal", (looks.journal[-1] - looks.journal[0]) / turns, "B a turn"),
        Figure(f"{name}: speed", 1 / rate, "turns/s"),
    ]
    if looks.traced:
        figures.append(Figure(f"{name}: traced", (looks.traced[-1] - looks.traced[0]) / turns, "B a turn"))
    seen = {"turns": turns, "blocks": looks.blocks, "resident": looks.resident, "journal": looks.journal}
    return figures, {**seen, "grew": looks.grown(turns)}


PARTS = {"over": over, "endless": endless}


def measure(options: Options) -> Measured:
    folder = options.tokenizer or demo_model_dir()
    turns = options.turns or (QUICK_TURNS if options.quick else TURNS)
    warm_up = QUICK_WARM_UP_TURNS if options.quick else WARM_UP_TURNS
    if options.trace:
        tracemalloc.start()
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    for part in options.part or PARTS:
        found, details[part] = uvloop.run(PARTS[part](folder, warm_up, turns))
        figures += found
    tracemalloc.stop()
    return Measured(figures, details, "\n".join(f"{part}:\n{_text(seen['grew'])}" for part, seen in details.items()))


def _text(grew: dict[str, Any]) -> str:
    types = [f"{count:10.4f} objects a turn   {name}" for name, count in grew["types"] if count > 0]
    return "\n".join([*types, *(f"{size:10.2f} bytes a turn     {where}" for where, size in grew["lines"])])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--turns", type=int, help=f"Of each part (default: {TURNS}).")
    parser.add_argument("--trace", action="store_true", help="Name the lines of code whose memory grew.")
    parser.add_argument("--part", choices=PARTS, action="append", help="Only this one.")
    parser.add_argument("--tokenizer", type=Path, help="Folder with tokenizer.json (default: the demo model's).")


def main(argv: list[str] | None = None) -> None:
    run_benchmark("growth", __doc__, measure, argv, add_options)


if __name__ == "__main__":
    main()
