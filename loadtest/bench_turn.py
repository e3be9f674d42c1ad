"""The server's CPU time of a turn of an agent, over the length of its history, everything included; beside it a naive adapter's.

    python -m loadtest.bench_turn [--sessions N] [--tokenizer DIR]

Real HTTP, a real tritonserver with the scripted model (which replies at once, so nothing but the server costs time), the journal at
its default, fsync. An agent session grows from 9k to more than 100k tokens by turns of about 800 new and 60 sampled tokens. Each
length's figure is the median of the turns nearest to it; each turn's CPU time is that of the server's process, all threads. One
more agent does the same at the yardstick, ``loadtest.naive``, turn by turn with one of the server's.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from engine.assets import demo_model_dir
from loadtest import naive
from loadtest.agent import Agent, Writer, script
from loadtest.figures import Figure, Measured, median
from loadtest.program import Options, run_benchmark, say
from loadtest.system import Server, changed_over, scripted_system

LENGTHS, QUICK_LENGTHS = (10_000, 30_000, 64_000, 100_000), (10_000, 12_000)
GOALS_MS = {64_000: 4.0, 100_000: 5.5}
GOAL_GROWTH = 2.5
"""The longest to the shortest."""
SESSIONS, QUICK_SESSIONS = 3, 1
NEAREST = 9
"""Turns of a session that count for a length."""
SETTLE_S = 0.01
"""Behind a turn, for what the server does after its end."""


@dataclass(frozen=True, slots=True)
class Turn:
    """``tokens`` of its prompt; milliseconds."""

    tokens: int
    cpu_ms: float
    wall_ms: float


async def one_turn(server: Server, agent: Agent) -> Turn:
    request, cpu_s, began = agent.request(), server.cpu_s(), time.perf_counter()
    tokens = await agent.turn(request)
    wall_s = time.perf_counter() - began
    await asyncio.sleep(SETTLE_S)
    return Turn(tokens, (server.cpu_s() - cpu_s) * 1000, wall_s * 1000)


async def session(longest: int, *places: tuple[Server, Agent]) -> list[list[Turn]]:
    """Turns at each of ``places`` alternately, until the first one's history is longer than ``longest``."""
    turns: list[list[Turn]] = [[] for _ in places]
    while not turns[0] or turns[0][-1].tokens < longest * 1.04:
        for found, (server, agent) in zip(turns, places, strict=True):
            found.append(await one_turn(server, agent))
    return turns


def nearest(turns: list[Turn], length: int) -> list[Turn]:
    """Those of a session's turns that stand for ``length``; never the first, which renders everything."""
    return sorted(turns[1:], key=lambda turn: abs(turn.tokens - length))[:NEAREST]


async def run(folder: Path, lengths: tuple[int, ...], sessions: int, *, quick: bool = False) -> Measured:
    writer, turns = Writer(folder), []
    async with (
        scripted_system(script(writer), folder) as system,
        naive.running(system.triton, folder, system.folder / "naive.log") as yardstick,
        aiohttp.ClientSession(system.server.url) as http,
        aiohttp.ClientSession(yardstick.url) as naive_http,
    ):
        await session(lengths[0], (system.server, Agent(http, "warm-up", writer)))
        if not quick:
            await changed_over(system.server)
        for number in range(sessions):
            turns += await session(lengths[-1], (system.server, Agent(http, f"agent-{number}", writer)))
            say(f"session {number + 1} of {sessions}: {len(turns[-1])} turns, up to {turns[-1][-1].tokens} tokens")
        beside = (
            (system.server, Agent(http, "agent-beside", writer)),
            (yardstick, Agent(naive_http, "agent-naive", writer)),
        )
        own, whole = await session(lengths[-1], *beside)
    figures = [*costs(lengths, turns), *compared(lengths, own, whole)]
    return Measured(figures, {"tokenizer": folder.name, "turns": [[turn.tokens, turn.cpu_ms] for turn in turns[0]]})


def costs(lengths: tuple[int, ...], sessions: list[list[Turn]]) -> list[Figure]:
    by_length = {length: [turn for each in sessions for turn in nearest(each, length)] for length in lengths}
    cpu = {length: median([turn.cpu_ms for turn in found]) for length, found in by_length.items()}
    wall = {length: median([turn.wall_ms for turn in found]) for length, found in by_length.items()}
    first, last = lengths[0], lengths[-1]
    cold = median([turns[0].cpu_ms for turns in sessions])
    return [
        *(Figure(f"CPU at {length // 1000}k", cpu[length], "ms", GOALS_MS.get(length)) for length in lengths),
        *(Figure(f"wall at {length // 1000}k", wall[length], "ms") for length in lengths),
        Figure(f"CPU at {last // 1000}k / {first // 1000}k", cpu[last] / cpu[first], "x", GOAL_GROWTH),
        Figure(f"first turn, {sessions[0][0].tokens // 1000}k cold", cold, "ms"),
    ]


def compared(lengths: tuple[int, ...], own: list[Turn], whole: list[Turn]) -> list[Figure]:
    """Turns of one agent at the server, and the same at the naive adapter."""
    figures = []
    for length in lengths:
        mine, naive_ms = (median([turn.cpu_ms for turn in nearest(turns, length)]) for turns in (own, whole))
        figures.append(Figure(f"naive adapter's CPU at {length // 1000}k", naive_ms, "ms"))
        figures.append(Figure(f"CPU / naive adapter's at {length // 1000}k", mine / naive_ms, "x"))
    return figures


def measure(options: Options) -> Measured:
    folder = options.tokenizer or demo_model_dir()
    if options.quick:
        return asyncio.run(run(folder, QUICK_LENGTHS, QUICK_SESSIONS, quick=True))
    return asyncio.run(run(folder, LENGTHS, options.sessions))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="Agent sessions (default: %(default)s).")
    parser.add_argument("--tokenizer", type=Path, help="Folder with tokenizer.json (default: the demo model's).")


def main(argv: list[str] | None = None) -> None:
    run_benchmark("turn", __doc__, measure, argv, add_options)


if __name__ == "__main__":
    main()
