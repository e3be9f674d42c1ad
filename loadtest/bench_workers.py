"""Two workers share nothing: the server's CPU time of a turn with two workers, to that with one, and requests passed on.

    python -m loadtest.bench_workers [--sessions N] [--turns N] [--rounds N] [--tokenizer DIR]

Two servers in front of one real tritonserver with the scripted model, which replies at once: one of one worker, one of two.
Agents with 20k tokens of history and more work on each in turn, eight at a time, at the URL that their session was opened with.
The CPU time is that of all processes of a server, the supervisor included. A third round of the server of two workers goes to its
public address, where a session's requests come to any worker: what is passed on costs more, and is told beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil

from engine.assets import demo_model_dir
from loadtest.agent import Agent, Writer, script
from loadtest.figures import Figure, Measured, median
from loadtest.program import Options, run_benchmark, say
from loadtest.system import Server, changed_over, process_cpu_s, scripted_system

SESSIONS, TURNS, ROUNDS = 8, 6, 4
QUICK_SESSIONS, QUICK_TURNS, QUICK_ROUNDS = 2, 1, 1
SYSTEM_TOKENS, QUICK_SYSTEM_TOKENS = 17_000, 1_000
WARM_UP_TURNS = 1
GOAL_RATIO = 1.1
PASSED_ON = re.compile(r"^rollserve_http_passed_on_total(?:\{.*\})? (\S+)$", re.MULTILINE)


@dataclass(slots=True)
class Cost:
    """Of one way to reach a server: milliseconds of CPU time a turn, a value for each round; requests passed on in all."""

    cpu_ms: list[float] = field(default_factory=list)
    passed_on: float = 0.0


def cpu_s(server: Server) -> float:
    """Of all the server's processes so far."""
    root = psutil.Process(server.pid)
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(OSError):  # it has ended
            total += process_cpu_s(process.pid)
    return total


async def passed_on(server: Server) -> float:
    async with aiohttp.ClientSession(server.url) as http, http.get("/metrics") as answer:
        return sum(float(count) for count in PASSED_ON.findall(await answer.text()))


@asynccontextmanager
async def at_work(server: Server, sid: str, writer: Writer, tokens: int, *, own_url: bool) -> AsyncIterator[Agent]:
    """An agent in an open session, after its first turns."""
    async with aiohttp.ClientSession(server.url) as http, http.post("/v1/sessions", json={"sid": sid}) as answer:
        url = (await answer.json())["base_url"]
    base = url.removesuffix(f"/s/{sid}") if own_url else server.url
    async with aiohttp.ClientSession(base) as http:
        agent = Agent(http, sid, writer, tokens)
        for _ in range(WARM_UP_TURNS):
            await agent.turn(agent.request())
        yield agent


async def one_round(server: Server, agents: list[Agent], turns: int, cost: Cost) -> None:
    async def work(agent: Agent) -> None:
        for _ in range(turns):
            await agent.turn(agent.request())

    spent, passed = cpu_s(server), await passed_on(server)
    async with asyncio.TaskGroup() as group:
        for agent in agents:
            group.create_task(work(agent))
    cost.cpu_ms.append((cpu_s(server) - spent) * 1000 / (turns * len(agents)))
    cost.passed_on += await passed_on(server) - passed


async def run(
    folder: Path, sessions: int, turns: int, rounds: int, system_tokens: int, *, quick: bool = False
) -> Measured:
    writer, costs = Writer(folder), {"one worker": Cost(), "two workers": Cost(), "two workers, any address": Cost()}
    async with contextlib.AsyncExitStack() as stack:
        system = await stack.enter_async_context(scripted_system(script(writer), folder))
        one = await stack.enter_async_context(system.another("--workers", "1"))
        two = await stack.enter_async_context(system.another("--workers", "2"))
        if not quick:
            await asyncio.gather(changed_over(one), changed_over(two, workers=2))
        ways = dict(zip(costs, ((one, True), (two, True), (two, False)), strict=True))
        agents: dict[str, list[Agent]] = {}
        for way, (name, (server, own_url)) in enumerate(ways.items()):
            sids = [f"agent-{way}-{number}" for number in range(sessions)]
            agents[name] = [
                await stack.enter_async_context(at_work(server, sid, writer, system_tokens, own_url=own_url))
                for sid in sids
            ]
        for number in range(rounds):
            for name, (server, _) in ways.items():
                await one_round(server, agents[name], turns, costs[name])
            say(f"round {number + 1} of {rounds}")
    return Measured(_figures(costs), {"sessions": sessions, "turns": turns, "rounds": rounds})


def _figures(costs: dict[str, Cost]) -> list[Figure]:
    one, two, any_address = costs.values()
    ratios = [mine / alone for mine, alone in zip(two.cpu_ms, one.cpu_ms, strict=True)]
    anywhere = [mine / alone for mine, alone in zip(any_address.cpu_ms, one.cpu_ms, strict=True)]
    return [
        *(Figure(f"{name}: CPU a turn", median(cost.cpu_ms), "ms") for name, cost in costs.items()),
        Figure("two workers / one", median(ratios), "x", GOAL_RATIO),
        Figure("two workers, any address / one", median(anywhere), "x"),
        Figure("passed on, at the session's URL", two.passed_on, "requests", 0),
        Figure("passed on, any address", any_address.passed_on, "requests"),
    ]


def measure(options: Options) -> Measured:
    folder = options.tokenizer or demo_model_dir()
    if options.quick:
        return asyncio.run(run(folder, QUICK_SESSIONS, QUICK_TURNS, QUICK_ROUNDS, QUICK_SYSTEM_TOKENS, quick=True))
    return asyncio.run(run(folder, options.sessions, options.turns, options.rounds, SYSTEM_TOKENS))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="Of each kind (default: %(default)s).")
    parser.add_argument("--turns", type=int, default=TURNS, help="Of each a round (default: %(default)s).")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="Of each kind (default: %(default)s).")
    parser.add_argument("--tokenizer", type=Path, help="Folder with tokenizer.json (default: the demo model's).")


def main(argv: list[str] | None = None) -> None:
    run_benchmark("workers", __doc__, measure, argv, add_options)


if __name__ == "__main__":
    main()
