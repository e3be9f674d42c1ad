"""What stays in memory of sessions that are over: it must be nothing, however many there were.

    python -m loadtest.bench_growth [--turns N] [--tokenizer DIR] [--journal DIR] [--json FILE]

A whole server in this process, in front of an engine that answers at once. Sessions of a few short turns, in all protocols, are
opened, finished, dropped. What is bounded is bounded low, and full before the first look (``WARM_UP_TURNS``). Printed: bytes that
Python holds per turn at each look (tracemalloc), and the lines of code whose memory grew most from the first look to the last.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import orjson

from adapter.config import Config
from adapter.handles import HandleIds
from adapter.http.server import listening
from adapter.http.state import ServerState
from adapter.journaling import prepared, recording
from adapter.render.prompt import Renderer
from adapter.sessions import Sessions
from adapter.turn import TurnServices
from adapter.types import Durability
from engine.assets import demo_model_dir
from engine.types import EngineInfo, Finished, FinishReason, GenerateRequest, LogProbMode, TokenChunk

WARM_UP_TURNS = 2_000
TURNS_PER_SESSION = 4
LOOKS = 4
LINES = 12
"""Lines of code that are named."""

BOUNDS: dict[str, Any] = {
    "keep_finished": 50,
    "replay_total_bytes": 1024 * 1024,
    "replay_session_bytes": 64 * 1024,
    "journal_segment_bytes": 1024 * 1024,
}
TEXT = {"role": "user", "content": "What is in this folder?"}
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/messages", {"messages": [TEXT], "stream": True}),
    ("/v1/messages", {"messages": [TEXT]}),
    ("/v1/chat/completions", {"messages": [TEXT], "stream": True}),
    ("/v1/chat/completions", {"messages": [TEXT], "n": 2, "logprobs": True}),
    ("/v1/responses", {"input": "What is in this folder?", "stream": True}),
    (
        "/v1beta/models/rollserve:streamGenerateContent?alt=sse",
        {"contents": [{"role": "user", "parts": [{"text": "What is in this folder?"}]}]},
    ),
    ("/v1/messages", {"messages": "not messages"}),
)


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


@asynccontextmanager
async def server(folder: Path, journal: Path | None) -> AsyncIterator[aiohttp.ClientSession]:
    durability = Durability.NONE if journal is None else Durability.OS
    config = Config(port=0, durability=durability, journal=journal, **BOUNDS)
    with prepared(config):
        async with recording(config) as recorded:
            renderer = Renderer.load(folder)
            services = TurnServices.build(config, InstantEngine(), renderer, HandleIds(recorded.handles))
            sessions = Sessions(config, renderer.decode, lambda: 1, recorded.recorder, recorded.recovered)
            async with listening(ServerState(services, sessions)) as url, aiohttp.ClientSession(url) as http:
                yield http


async def session(http: aiohttp.ClientSession, number: int) -> int:
    """One session from its beginning to its end; gives its requests."""
    sid = f"growth-{number}"
    await _call(http, "POST", "/v1/sessions", {"sid": sid})
    for place in range(TURNS_PER_SESSION):
        path, body = REQUESTS[(number + place) % len(REQUESTS)]
        await _call(http, "POST", f"/s/{sid}{path}", body)
    if number % 4:
        await _call(http, "POST", f"/v1/sessions/{sid}/finish", {})
    else:
        await _call(http, "DELETE", f"/v1/sessions/{sid}")
    return TURNS_PER_SESSION


async def _call(http: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> None:
    async with http.request(method, path, json=body) as response:
        await response.read()
        if response.status >= 500:
            raise SystemExit(f"{method} {path}: {response.status}")


async def measure(folder: Path, journal: Path | None, turns: int) -> dict[str, Any]:
    """``held``: bytes at each look; ``grew``: lines of code, by bytes a turn."""
    async with server(folder, journal) as http:
        numbers = iter(range(10**9))
        await _run(http, numbers, WARM_UP_TURNS)
        tracemalloc.start()
        await _run(http, numbers, WARM_UP_TURNS)
        first, began, held = _look(), time.perf_counter(), []
        held.append(tracemalloc.get_traced_memory()[0])
        for _ in range(LOOKS):
            await _run(http, numbers, turns // LOOKS)
            last = _look()
            held.append(tracemalloc.get_traced_memory()[0])
        grown = sorted(last.compare_to(first, "lineno"), key=lambda line: -line.size_diff)[:LINES]
        tracemalloc.stop()
    return {
        "turns": turns,
        "journal": journal is not None,
        "seconds": round(time.perf_counter() - began, 1),
        "held": held,
        "bytes_per_turn": round((held[-1] - held[0]) / turns, 1),
        "grew": [[str(line.traceback), round(line.size_diff / turns, 2)] for line in grown],
    }


async def _run(http: aiohttp.ClientSession, numbers: Any, turns: int) -> None:
    done = 0
    while done < turns:
        done += await session(http, next(numbers))


def _look() -> tracemalloc.Snapshot:
    gc.collect()
    return tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.Filter(False, tracemalloc.__file__), tracemalloc.Filter(False, __file__)]
    )


def report(figures: dict[str, Any]) -> str:
    held = ", ".join(f"{size / 1e6:.2f}" for size in figures["held"])
    head = f"{figures['turns']} turns in {figures['seconds']} s; MB held at each look: {held}"
    lines = [f"{size:9.2f}  {where}" for where, size in figures["grew"]]
    return "\n".join([head, f"{figures['bytes_per_turn']} bytes a turn; by line:", *lines])


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20_000)
    parser.add_argument("--tokenizer", type=Path, help="Folder with tokenizer.json. Default: the demo model's.")
    parser.add_argument("--journal", type=Path, help="Record in this folder. Default: no journal.")
    parser.add_argument("--json", type=Path, help="Write the figures here, too.")
    arguments = parser.parse_args(argv)
    folder = arguments.tokenizer or demo_model_dir()
    figures = asyncio.run(measure(folder, arguments.journal, arguments.turns))
    print(report(figures))
    if arguments.json is not None:
        arguments.json.write_bytes(orjson.dumps(figures))


if __name__ == "__main__":
    main()
