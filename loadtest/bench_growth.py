"""What stays in memory of turns that are over: of a session that ended nothing, of one that is still open its content.

    python -m loadtest.bench_growth [--turns N] [--part over|endless] [--tokenizer DIR]

A whole server in this process, in front of an engine that answers at once, with a journal in a temporary folder.

    over      sessions of a few short turns, in all protocols, are opened; finished, dropped, or left until their time is over
    endless   one session has turn after turn, each a conversation of its own, and is spilled to the journal when idle

What is bounded is bounded low, and full before the first look. At each look everything idle has been let go of and the garbage
collected; then what is held is counted: blocks of up to 512 bytes, which Python allocates itself (``sys.getallocatedblocks``), and
the bytes of larger ones (``mallinfo2``). Resident memory says less: it keeps what a session needed while it was in memory. A
server that keeps anything of a turn has blocks or bytes in proportion to its turns; less than the goals is counters and noise.
What grew is told by types of objects.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import sys
import tempfile
import time
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

TURNS, QUICK_TURNS = 6_000, 64
WARM_UP_TURNS, QUICK_WARM_UP_TURNS = 5_000, 32
TURNS_PER_SESSION = 4
LOOKS, QUICK_LOOKS = 3, 1
"""Behind the first."""
TYPES = 15
"""That are named, those that grew most."""
GOAL_BLOCKS, GOAL_BYTES = 0.2, 40.0
"""A turn. One object a session would be 0.25 blocks. Of an open session the places of its turns in the journal are held: 28 B."""

BOUNDS: dict[str, Any] = {
    "keep_finished": 50,
    "replay_total_bytes": 1024 * 1024,
    "replay_session_bytes": 64 * 1024,
    "replay_keep_s": 1.0,
    "journal_segment_bytes": 4 * 1024 * 1024,
}
TTL_S = 1.0
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


class InstantEngine:
    """Says the same ``tokens`` tokens in two chunks; prompts have ``context`` tokens at most."""

    def __init__(self, tokens: int = 8, context: int = 4096) -> None:
        self._tokens = tokens
        self.info = EngineInfo(
            model="instant", log_prob_mode=LogProbMode.RAW, max_seq_len=context, vocab_size=40_000, weight_version=1
        )

    async def connect(self) -> None: ...

    async def check_ready(self) -> None: ...

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        half = self._tokens // 2
        for number in range(2):
            ids, log_probs = np.arange(1000, 1000 + half, dtype=np.int32), np.full(half, -0.5, np.float32)
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
async def serving(folder: Path, engine: InstantEngine | None = None, **settings: Any) -> AsyncIterator[Server]:
    """``folder`` has the tokenizer; ``settings`` are fields of ``Config``."""
    with tempfile.TemporaryDirectory(prefix="rollserve-bench-") as journal:
        config = Config(port=0, durability=Durability.OS, journal=Path(journal), **BOUNDS, **settings)
        with prepared(config):
            loaded = Loaded(config, engine or InstantEngine(), Renderer.load(folder))
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


class _MallInfo(ctypes.Structure):
    """``struct mallinfo2`` (mallinfo(3), glibc 2.33)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def large_bytes() -> int:
    """Bytes that ``malloc`` has given out."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _MallInfo
    found = ask()
    return int(found.uordblks + found.hblkhd)


@dataclass(slots=True)
class Looks:
    """What was there at each look."""

    blocks: list[int] = field(default_factory=list)
    large: list[int] = field(default_factory=list)
    journal: list[int] = field(default_factory=list)
    types: list[Counter[str]] = field(default_factory=list)

    def look(self, server: Server) -> None:
        gc.collect()
        self.blocks.append(sys.getallocatedblocks())
        self.large.append(large_bytes())
        self.journal.append(sum(file.stat().st_size for file in server.journal.rglob("*") if file.is_file()))
        self.types.append(Counter(type(each).__name__ for each in gc.get_objects()))

    def grown(self, turns: int) -> list[tuple[str, float]]:
        """Types by objects that the garbage collector knows of, from the first look to the last, a turn."""
        types = Counter(self.types[-1])
        types.subtract(self.types[0])
        return [(name, round(count / turns, 4)) for name, count in types.most_common(TYPES) if count > 0]


@dataclass(frozen=True, slots=True)
class Plan:
    """Turns before the first look, turns behind it, looks at these."""

    warm_up: int
    turns: int
    looks: int

    def targets(self) -> list[int]:
        """The turns done at each look."""
        return [self.warm_up + self.turns * look // self.looks for look in range(self.looks + 1)]


async def watch(server: Server, work: Work, plan: Plan, label: str) -> tuple[Looks, float]:
    """Do ``work`` and look; gives also the seconds of a turn, the last ones."""
    looks, done = Looks(), 0
    for target in plan.targets():
        began, before = time.perf_counter(), done
        while done < target:
            done += await work(server, done)
        rate = (time.perf_counter() - began) / max(1, done - before)
        await server.idle()
        looks.look(server)
        say(
            f"{label}: {done} turns, {looks.blocks[-1]} blocks, {looks.large[-1] / 1e6:.2f} MB larger ones, {1 / rate:.0f} turns/s"
        )
    return looks, rate


async def over(folder: Path, plan: Plan) -> tuple[list[Figure], dict[str, Any]]:
    async with serving(folder, session_ttl_s=TTL_S) as server:
        looks, rate = await watch(server, short_session, plan, "over")
    return _report("over", looks, plan.turns, rate)


async def endless(folder: Path, plan: Plan) -> tuple[list[Figure], dict[str, Any]]:
    async with serving(folder, session_idle_s=1.0) as server:
        await server.call("POST", "/v1/sessions", {"sid": "endless"})
        looks, rate = await watch(server, endless_turn, plan, "endless")
    return _report("endless", looks, plan.turns, rate)


def _report(name: str, looks: Looks, turns: int, rate: float) -> tuple[list[Figure], dict[str, Any]]:
    figures = [
        Figure(f"{name}: blocks", (looks.blocks[-1] - looks.blocks[0]) / turns, "a turn", GOAL_BLOCKS),
        Figure(f"{name}: larger blocks", (looks.large[-1] - looks.large[0]) / turns, "B a turn", GOAL_BYTES),
        Figure(f"{name}: journal", (looks.journal[-1] - looks.journal[0]) / turns, "B a turn"),
        Figure(f"{name}: speed", 1 / rate, "turns/s"),
    ]
    seen = {"turns": turns, "blocks": looks.blocks, "large": looks.large, "journal": looks.journal}
    return figures, {**seen, "grew": looks.grown(turns)}


PARTS = {"over": over, "endless": endless}


def measure(options: Options) -> Measured:
    folder = options.tokenizer or demo_model_dir()
    plan = (
        Plan(QUICK_WARM_UP_TURNS, QUICK_TURNS, QUICK_LOOKS)
        if options.quick
        else Plan(WARM_UP_TURNS, options.turns, LOOKS)
    )
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    for part in options.part or PARTS:
        found, details[part] = uvloop.run(PARTS[part](folder, plan))
        figures += found
    return Measured(figures, details, "\n".join(f"{part}:\n{_text(seen['grew'])}" for part, seen in details.items()))


def _text(grew: list[tuple[str, float]]) -> str:
    return "\n".join(f"{count:10.4f} objects a turn   {name}" for name, count in grew)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--turns", type=int, default=TURNS, help="Of each part (default: %(default)s).")
    parser.add_argument("--part", choices=PARTS, action="append", help="Only this one.")
    parser.add_argument("--tokenizer", type=Path, help="Folder with tokenizer.json (default: the demo model's).")


def main(argv: list[str] | None = None) -> None:
    run_benchmark("growth", __doc__, measure, argv, add_options)


if __name__ == "__main__":
    main()
