"""What 500 clients that hardly read cost one that does: its p99 with and without them, in one run.

    python -m loadtest.bench_slow_readers [--readers N] [--rounds N]

A real tritonserver with the scripted model, the server as a process. A slow reader asks for a stream of 160 kB, lets its kernel
hold 4 kB, and takes 512 bytes a second. The engine has sent all of it by then: that Triton has to be asked for each live request
whether it was cancelled is not what is measured here, and with 500 of them takes a quarter of a core in bursts. The fast one asks
for one streamed reply after the other, a token every 10 ms, a message a token. Rounds of both states alternate; a ratio is the
median of those of the rounds. ``waiting`` are the bytes in the server's kernel that the slow readers have not taken, of the one
that has the fewest: what it cannot hold waits in the server.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from engine.assets import demo_model_dir
from loadtest.figures import Figure, Measured, median, percentile
from loadtest.program import Options, run_benchmark, say
from loadtest.system import Server, scripted_system
from loadtest.wire import Wire, ask, sent

GOAL_RATIO = 1.2
"""With to without: more than that is not noise."""
READERS, QUICK_READERS = 500, 20
ROUNDS, TURNS = 2, 30
QUICK_ROUNDS, QUICK_TURNS = 1, 3
TOKENS, TOKEN_MS = 40, 10
"""Of the fast one's replies."""
COALESCE_MS = 5
LONG_TOKEN = 45855
"""80 times ``#`` in the demo model's vocabulary."""
SLOW_TOKENS = 2000
SLOW_BUFFER, SLOW_BYTES = 4096, 512
"""What the kernel takes of a slow reader's stream unread, and what it reads a second."""
SCRIPT = {
    "rules": [
        {
            "session_regex": "slow-.*",
            "ids": [LONG_TOKEN] * SLOW_TOKENS,
            "time_per_output_token_ms": 0,
        }
    ],
    "default": {"ids": [354] * TOKENS},
    "timing": {"time_per_output_token_ms": TOKEN_MS},
}
STUCK_S = 120.0
QUIET_SHARE = 0.03
"""Of a core."""
END = b"\r\n0\r\n\r\n"


@dataclass(slots=True)
class Round:
    """What the fast client saw in one round, in milliseconds, and what the server took for it."""

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)
    cpu_percent: float = 0.0
    memory_mb: float = 0.0
    waiting: int = 0
    """Bytes; see the module."""


async def fast_turn(url: str, sid: str, seen: Round) -> None:
    what = ask("anthropic", "Go on.", streams=True)
    began = time.perf_counter()
    async with sent(url, sid, what) as wire:
        marks, whole = [], b""
        while not whole.endswith(END):
            chunk = await wire.read()
            whole += chunk
            marks += [time.perf_counter()] * (whole.count(what.mark) - len(marks))
            if not chunk or (whole.endswith(END) and len(marks) < TOKENS):
                raise ConnectionError(f"the reply of {sid} is not whole: {whole!r}")
    seen.turns.append((time.perf_counter() - began) * 1000)
    seen.first.append((marks[0] - began) * 1000)
    seen.gaps += [(later - earlier) * 1000 for earlier, later in pairwise(marks)]


async def fast_round(server: Server, label: str, turns: int) -> Round:
    seen, began, cpu_s = Round(), time.perf_counter(), server.cpu_s()
    for number in range(turns):
        await fast_turn(server.url, f"fast-{label}-{number}", seen)
    seen.cpu_percent = (server.cpu_s() - cpu_s) / (time.perf_counter() - began) * 100
    seen.memory_mb = memory_mb(server.pid)
    return seen


async def slow_readers(stack: AsyncExitStack, url: str, label: str, count: int) -> list[Wire]:
    what = ask("anthropic", "Go on.", streams=True)
    found = []
    for number in range(count):
        wire = sent(url, f"slow-{label}-{number}", what, receive_buffer=SLOW_BUFFER)
        found.append(await stack.enter_async_context(wire))
    return found


async def trickle(wires: list[Wire]) -> None:
    """Each reads its bytes once a second, one after the other."""
    while True:
        for wire in wires:
            await asyncio.sleep(1 / len(wires))
            await wire.read(SLOW_BYTES)


def unsent(port: int) -> dict[str, int]:
    """Bytes in the send queue of each connection of the server at ``port``, by the client's address (proc(5), /proc/net/tcp)."""
    queues = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, queue, *_ = line.split()
        if state == "01" and int(local.rpartition(":")[2], 16) == port:
            queues[remote] = int(queue.partition(":")[0], 16)
    return queues


def least_waiting(server: Server, readers: int) -> int:
    """Of the ``readers`` connections with the most bytes in the send queue, the fewest."""
    queues = sorted(unsent(urlsplit(server.url).port or 0).values(), reverse=True)
    return queues[readers - 1] if len(queues) >= readers else 0


async def stuck(server: Server, readers: int) -> None:
    """Until so many clients have bytes waiting. Raises: TimeoutError."""
    async with asyncio.timeout(STUCK_S):
        while not least_waiting(server, readers):  # noqa: ASYNC110 - it is the kernel that knows
            await asyncio.sleep(0.2)
    await quiet(server)


async def quiet(server: Server) -> None:
    """Until the server does next to nothing. Raises: TimeoutError."""
    async with asyncio.timeout(STUCK_S):
        busy = 1.0
        while busy > QUIET_SHARE:
            cpu_s = server.cpu_s()
            await asyncio.sleep(0.5)
            busy = (server.cpu_s() - cpu_s) / 0.5


async def with_readers(server: Server, label: str, readers: int, turns: int) -> Round:
    """One round beside slow readers, which leave behind it, and their sessions with them."""
    async with AsyncExitStack() as stack:
        wires = await slow_readers(stack, server.url, label, readers)
        await stuck(server, readers)
        reading = asyncio.create_task(trickle(wires))
        try:
            seen = await fast_round(server, f"with-{label}", turns)
            if reading.done():
                reading.result()
            seen.waiting = least_waiting(server, readers)
        finally:
            reading.cancel()
    async with aiohttp.ClientSession(server.url) as http:
        for number in range(readers):
            await http.delete(f"/v1/sessions/slow-{label}-{number}")
    await quiet(server)
    return seen


async def run(readers: int, rounds: int, turns: int) -> Measured:
    alone: list[Round] = []
    beside: list[Round] = []
    async with scripted_system(SCRIPT, demo_model_dir(), coalesce_ms=COALESCE_MS, adaptive=False) as system:
        await fast_round(system.server, "warm-up", turns)
        for number in range(rounds):
            alone.append(await fast_round(system.server, f"without-{number}", turns))
            beside.append(await with_readers(system.server, str(number), readers, turns))
            say(f"round {number + 1} of {rounds}")
    memory = [with_.memory_mb - without.memory_mb for without, with_ in zip(alone, beside, strict=True)]
    figures = [
        *_figures("gap between tokens", [one.gaps for one in alone], [one.gaps for one in beside]),
        *_figures("turn", [one.turns for one in alone], [one.turns for one in beside]),
        *_figures("first token", [one.first for one in alone], [one.first for one in beside], None),
        Figure("waiting", min(one.waiting for one in beside), "bytes"),
        Figure("memory a slow reader", memory[0] / readers * 1000, "kB"),
        Figure("server's CPU without", median([one.cpu_percent for one in alone]), "% core"),
        Figure("server's CPU with", median([one.cpu_percent for one in beside]), "% core"),
    ]
    gaps = sum(len(one.gaps) for one in beside)
    return Measured(figures, {"readers": readers, "rounds": rounds, "turns": turns, "gaps": gaps})


def _figures(
    name: str, alone: list[list[float]], beside: list[list[float]], goal: float | None = GOAL_RATIO
) -> list[Figure]:
    """Of one kind of time, by rounds."""
    pairs = [(percentile(without, 99), percentile(with_, 99)) for without, with_ in zip(alone, beside, strict=True)]
    return [
        Figure(f"{name}: p50 without", median([median(each) for each in alone]), "ms"),
        Figure(f"{name}: p50 with", median([median(each) for each in beside]), "ms"),
        Figure(f"{name}: p99 without", median([without for without, _ in pairs]), "ms"),
        Figure(f"{name}: p99 with", median([with_ for _, with_ in pairs]), "ms"),
        Figure(f"{name}: p99 with / without", median([with_ / without for without, with_ in pairs]), "x", goal),
    ]


def memory_mb(pid: int) -> float:
    """Resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


def measure(options: Options) -> Measured:
    if options.quick:
        return asyncio.run(run(QUICK_READERS, QUICK_ROUNDS, QUICK_TURNS))
    return asyncio.run(run(options.readers, options.rounds, TURNS))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--readers", type=int, default=READERS, help="Slow readers (default: %(default)s).")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="Of each state (default: %(default)s).")


def main(argv: list[str] | None = None) -> None:
    run_benchmark("slow_readers", __doc__, measure, argv, add_options)


if __name__ == "__main__":
    main()
