"""What the journal costs a turn: CPU time and time, at each durability.

    python -m loadtest.bench_journal [--turns N] [--tokenizer DIR]

Three servers in front of one real tritonserver with the scripted model: without a journal (``none``), one that only writes
(``os``), one that syncs (``fsync``, the default). An agent at each, all with the same history of 20k tokens and more; turns of
about 800 new and 60 sampled tokens, one at each server in turn, so that a slow moment of the machine hits all alike. Medians of
what a turn costs more than the same turn without a journal. The disk is the one that holds the temporary folder.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from engine.assets import demo_model_dir
from loadtest.agent import Agent, Writer, script
from loadtest.bench_turn import Turn, one_turn
from loadtest.figures import Figure, Measured, median
from loadtest.program import Options, run_benchmark, say
from loadtest.system import changed_over, scripted_system

GOAL_SHARE, GOAL_ADDED_MS = 10.0, 1.0
"""Percent of a turn's CPU time; milliseconds at p50."""
LEVELS, QUICK_LEVELS = ("none", "os", "fsync"), ("none", "fsync")
SYSTEM_TOKENS, QUICK_SYSTEM_TOKENS = 17_000, 1_000
TURNS, QUICK_TURNS = 60, 3
WARM_UP = 5


async def run(
    folder: Path, levels: tuple[str, ...], turns: int, system_tokens: int, *, quick: bool = False
) -> Measured:
    writer, seen = Writer(folder), {level: list[Turn]() for level in levels}
    async with AsyncExitStack() as stack:
        system = await stack.enter_async_context(scripted_system(script(writer), folder))
        servers = {level: await stack.enter_async_context(system.another("--durability", level)) for level in levels}
        if not quick:
            await asyncio.gather(*map(changed_over, servers.values()))
        agents = {}
        for level, server in servers.items():
            http = await stack.enter_async_context(aiohttp.ClientSession(server.url))
            agents[level] = Agent(http, f"agent-{level}", writer, system_tokens)
        for number in range(WARM_UP + turns):
            for level in levels:
                turn = await one_turn(servers[level], agents[level])
                if number >= WARM_UP:
                    seen[level].append(turn)
            if number % 20 == 19:
                say(f"{number + 1} of {WARM_UP + turns} turns at each server")
    tokens = [turn.tokens for turn in seen["none"]]
    return Measured(_figures(seen), {"turns": turns, "tokens": [tokens[0], tokens[-1]]})


def _figures(seen: dict[str, list[Turn]]) -> list[Figure]:
    figures = []
    for level, turns in seen.items():
        figures.append(Figure(f"{level}: CPU", median([turn.cpu_ms for turn in turns]), "ms"))
        figures.append(Figure(f"{level}: time", median([turn.wall_ms for turn in turns]), "ms"))
    for level in list(seen)[1:]:
        share, added = (GOAL_SHARE, GOAL_ADDED_MS) if level == "fsync" else (None, None)
        pairs = list(zip(seen[level], seen["none"], strict=True))
        more = median([(mine.cpu_ms - none.cpu_ms) / mine.cpu_ms * 100 for mine, none in pairs])
        figures.append(Figure(f"{level}: share of the turn's CPU", more, "%", share))
        figures.append(
            Figure(
                f"{level}: time added at p50",
                median([mine.wall_ms - none.wall_ms for mine, none in pairs]),
                "ms",
                added,
            )
        )
    return figures


def measure(options: Options) -> Measured:
    folder = options.tokenizer or demo_model_dir()
    if options.quick:
        return asyncio.run(run(folder, QUICK_LEVELS, QUICK_TURNS, QUICK_SYSTEM_TOKENS, quick=True))
    return asyncio.run(run(folder, LEVELS, options.turns, SYSTEM_TOKENS))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--turns", type=int, default=TURNS, help="At each server (default: %(default)s).")
    parser.add_argument("--tokenizer", type=Path, help="Folder with tokenizer.json (default: the demo model's).")


def main(argv: list[str] | None = None) -> None:
    run_benchmark("journal", __doc__, measure, argv, add_options)


if __name__ == "__main__":
    main()
