"""A hundred agents at once: CPU time of a turn, the latency that the server adds, and how late its event loop is.

    python -m loadtest.bench_stalls [--sessions N] [--turns N] [--tokenizer DIR]

A real tritonserver with the scripted model, 100 tokens at 50 tokens/s a turn, the journal at its default, fsync. Each agent has 12k
to 20k tokens of history and ten turns, and begins its next one as soon as a reply is whole; agents begin spread over one turn's
time. Added latency is what a client waits for a whole turn beyond the time that the engine's log says the turn took; added time to
the first token is what it waits for that beyond the one token time that the engine needs. Both hold Triton's and the client's
share, too, and all three work on the same cores here.

Then agents whose first request has 100k tokens arrive all at once, cold, with half of the others at work, some times over. The
loop's lag is the server's own (``/metrics``, ten looks a second): what waits for something that is due at a moment that has nothing
to do with it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from engine.assets import demo_model_dir
from loadtest.agent import Agent, Writer
from loadtest.figures import Figure, Measured, median, percentile
from loadtest.program import Options, run_benchmark, say
from loadtest.system import System, changed_over, scripted_system
from loadtest.watch import highest, lag_counts

TOKEN_MS, OUTPUT_TOKENS = 20, 100
SESSIONS, TURNS, COLD, ROUNDS = 100, 10, 8, 5
QUICK_SESSIONS, QUICK_TURNS, QUICK_COLD, QUICK_ROUNDS = 4, 2, 1, 1
SYSTEM_TOKENS = (8_500, 10_500)
"""With tools and ten turns: 12k to 20k tokens of history."""
COLD_TOKENS, QUICK_COLD_TOKENS = 96_000, 4_000
GOAL_CPU_MS, GOAL_ADDED_P50_MS, GOAL_ADDED_P99_MS, GOAL_TTFT_P50_MS = 6.0, 3.0, 10.0, 3.0
GOAL_LAG_MS, GOAL_COLD_LAG_MS = 3.0, 10.0
SEED = 7


@dataclass(frozen=True, slots=True)
class Seen:
    """One turn as its client saw it, milliseconds."""

    ttft_ms: float
    turn_ms: float


def replies(writer: Writer) -> dict[str, Any]:
    """The script: one call, token by token in the time of a GPU."""
    reply = {"text": writer.reply(OUTPUT_TOKENS), "end": True}
    return {"default": reply, "timing": {"time_per_output_token_ms": TOKEN_MS}}


async def one_session(agent: Agent, turns: int, begin_s: float, seen: list[Seen]) -> None:
    await asyncio.sleep(begin_s)
    for _ in range(turns):
        request, began = agent.request(), time.perf_counter()
        await agent.turn(request)
        seen.append(Seen((agent.first_at - began) * 1000, (agent.ended_at - began) * 1000))


async def lags(http: aiohttp.ClientSession) -> Counter[float]:
    """How often the server's loop was so late, by the upper end of the bucket in seconds."""
    async with http.get("/metrics") as answer:
        return lag_counts(await answer.text())


async def measured_lags(http: aiohttp.ClientSession, work: list[Coroutine[Any, Any, None]]) -> Counter[float]:
    """Of the time in which ``work`` is done."""
    before = await lags(http)
    async with asyncio.TaskGroup() as group:
        for each in work:
            group.create_task(each)
    return await lags(http) - before


async def run(
    folder: Path, sessions: int, turns: int, cold: int, cold_tokens: int, rounds: int, *, quick: bool = False
) -> Measured:
    writer, rng, seen, unused = Writer(folder), random.Random(SEED), list[Seen](), list[Seen]()
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        scripted_system(replies(writer), folder) as system,
        aiohttp.ClientSession(system.server.url, connector=connector) as http,
    ):
        await one_session(Agent(http, "warm-up", writer, SYSTEM_TOKENS[0]), 2, 0, unused)
        if not quick:
            await changed_over(system.server)
        begun_s = [rng.uniform(0, OUTPUT_TOKENS * TOKEN_MS / 1000) for _ in range(sessions)]
        agents = [Agent(http, f"agent-{number}", writer, rng.randint(*SYSTEM_TOKENS)) for number in range(sessions)]
        cpu_s, logged, began = system.server.cpu_s(), len(system.logged()), time.perf_counter()
        busy = [one_session(agent, turns, at, seen) for agent, at in zip(agents, begun_s, strict=True)]
        paced = await measured_lags(http, busy)
        took_s, cpu_s = time.perf_counter() - began, system.server.cpu_s() - cpu_s
        engine_ms = engine_times_ms(system, logged)
        say(f"{len(seen)} turns of {sessions} sessions in {took_s:.0f} s")
        crowded = Counter[float]()
        for number in range(rounds):
            half = [one_session(agent, 1, at, unused) for agent, at in list(zip(agents, begun_s, strict=True))[::2]]
            arriving = [Agent(http, f"agent-cold-{number}-{each}", writer, cold_tokens) for each in range(cold)]
            first = [one_session(agent, 1, OUTPUT_TOKENS * TOKEN_MS / 2000, unused) for agent in arriving]
            crowded += await measured_lags(http, half + first)
    figures = [
        Figure("CPU a turn", cpu_s * 1000 / len(seen), "ms", GOAL_CPU_MS),
        Figure("turns", len(seen) / took_s, "turns/s"),
        *added(seen, engine_ms),
        Figure("loop lag p99", highest(paced, 0.99) * 1000, "ms", GOAL_LAG_MS),
        Figure("loop lag, longest", highest(paced, 1) * 1000, "ms"),
        Figure(f"loop lag, longest, {cold} cold sessions", highest(crowded, 1) * 1000, "ms", GOAL_COLD_LAG_MS),
    ]
    return Measured(
        figures, {"sessions": sessions, "turns": turns, "lags": [sorted(paced.items()), sorted(crowded.items())]}
    )


def engine_times_ms(system: System, skip: int) -> list[float]:
    """How long the engine says that it had each request, but the first ``skip``."""
    return [(entry["slot_freed_at"] - entry["received_at"]) * 1000 for entry in system.logged()[skip:]]


def added(seen: list[Seen], engine_ms: list[float]) -> list[Figure]:
    """Every turn of the engine takes as long as the other: its median stands for all."""
    engine = median(engine_ms)
    turn = [each.turn_ms - engine for each in seen]
    first = [each.ttft_ms - TOKEN_MS for each in seen]
    return [
        Figure("added latency p50", percentile(turn, 50), "ms", GOAL_ADDED_P50_MS),
        Figure("added latency p99", percentile(turn, 99), "ms", GOAL_ADDED_P99_MS),
        Figure("added time to first token p50", percentile(first, 50), "ms", GOAL_TTFT_P50_MS),
        Figure("added time to first token p99", percentile(first, 99), "ms"),
    ]


def measure(options: Options) -> Measured:
    folder = options.tokenizer or demo_model_dir()
    if options.quick:
        return asyncio.run(
            run(folder, QUICK_SESSIONS, QUICK_TURNS, QUICK_COLD, QUICK_COLD_TOKENS, QUICK_ROUNDS, quick=True)
        )
    return asyncio.run(run(folder, options.sessions, options.turns, COLD, COLD_TOKENS, ROUNDS))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="At once (default: %(default)s).")
    parser.add_argument("--turns", type=int, default=TURNS, help="Of each (default: %(default)s).")
    parser.add_argument("--tokenizer", type=Path, help="Folder with tokenizer.json (default: the demo model's).")


def main(argv: list[str] | None = None) -> None:
    run_benchmark("stalls", __doc__, measure, argv, add_options)


if __name__ == "__main__":
    main()
