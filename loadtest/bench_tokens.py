"""The server's CPU time of a streamed message and of a token, beside what the gRPC stream alone costs a bare client.

    python -m loadtest.bench_tokens [--streams N] [--rounds N]

A real tritonserver with the scripted model, 50 tokens/s and stream, 4 or 16 tokens in a message. Streams run all the time; in a
window in the middle of them the CPU time of the server's process is divided by the messages that its clients were sent, so that
everything is in it (gRPC, checks, parsing, recording, SSE, the socket) but the beginning and the end of a turn. Rounds alternate
with a bare reader of the same streams (``loadtest.bare_reader``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from engine.assets import demo_model_dir
from loadtest.figures import Figure, Measured, median
from loadtest.program import Options, run_benchmark, say
from loadtest.system import Server, scripted_system
from loadtest.wire import Wire, ask, sent

SIZES = (4, 16)
"""Tokens in a message."""
GOALS_US = {4: 30.0, 16: 12.0}
"""Microseconds of CPU time a token."""
GOAL_RATIO = 1.0
"""A message, to the bare reader's."""
STREAMS, ROUNDS, WINDOW_S = 32, 3, 3.0
QUICK_STREAMS, QUICK_ROUNDS, QUICK_WINDOW_S = 4, 1, 0.7
WARM_UP_S = 1.5
TOKEN_MS = 20
WORD_ID, WORD = 1492, b" look"
SCRIPT = {"default": {"ids": [WORD_ID] * 5000}, "timing": {"time_per_output_token_ms": TOKEN_MS}}


@dataclass(slots=True)
class Cost:
    """What windows found, microseconds of CPU time; ``per_message`` is tokens."""

    message_us: list[float] = field(default_factory=list)
    token_us: list[float] = field(default_factory=list)
    per_message: list[float] = field(default_factory=list)

    def add(self, cpu_s: float, messages: int, tokens: int) -> None:
        self.message_us.append(cpu_s / messages * 1e6)
        self.token_us.append(cpu_s / tokens * 1e6)
        self.per_message.append(tokens / messages)


@dataclass(slots=True)
class Counts:
    """Messages and tokens that the clients were sent."""

    messages: int = 0
    tokens: int = 0


async def count(wire: Wire, mark: bytes, counts: Counts) -> None:
    """Read a stream; a mark or a word that two reads divide is put together."""
    keep, rest = max(len(mark), len(WORD)) - 1, b""
    while chunk := await wire.read():
        seen = rest + chunk
        counts.messages += seen.count(mark) - rest.count(mark)
        counts.tokens += seen.count(WORD) - rest.count(WORD)
        rest = seen[-keep:]


async def through_server(server: Server, label: str, streams: int, window_s: float, cost: Cost) -> None:
    what, counts = ask("anthropic", "Go on.", streams=True), Counts()
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        wires = [
            await stack.enter_async_context(sent(server.url, f"tokens-{label}-{number}", what))
            for number in range(streams)
        ]
        reading = [group.create_task(count(wire, what.mark, counts)) for wire in wires]
        await asyncio.sleep(WARM_UP_S)
        cpu_s, before = server.cpu_s(), Counts(counts.messages, counts.tokens)
        await asyncio.sleep(window_s)
        cost.add(server.cpu_s() - cpu_s, counts.messages - before.messages, counts.tokens - before.tokens)
        for task in reading:
            task.cancel()


async def bare(address: str, streams: int, window_s: float, cost: Cost) -> None:
    """Raises: RuntimeError, if the reader failed."""
    command = [sys.executable, "-m", "loadtest.bare_reader", address, str(streams), str(window_s)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the bare reader ended with {process.returncode}")
    found = json.loads(output)
    cost.add(found["cpu_s"], found["messages"], found["tokens"])


async def run_size(size: int, streams: int, rounds: int, window_s: float) -> list[Figure]:
    served, alone = Cost(), Cost()
    async with scripted_system(SCRIPT, demo_model_dir(), coalesce_ms=size * TOKEN_MS, adaptive=False) as system:
        for number in range(rounds):
            await through_server(system.server, str(number), streams, window_s, served)
            await bare(system.triton, streams, window_s, alone)
            say(f"{size} tokens a message: round {number + 1} of {rounds}")
    ratios = [mine / theirs for mine, theirs in zip(served.message_us, alone.message_us, strict=True)]
    return [
        Figure(f"{size} a message: token", median(served.token_us), "us CPU", GOALS_US[size]),
        Figure(f"{size} a message: message", median(served.message_us), "us CPU"),
        Figure(f"{size} a message: bare reader's message", median(alone.message_us), "us CPU"),
        Figure(f"{size} a message: message / bare reader's", median(ratios), "x", GOAL_RATIO),
        Figure(f"{size} a message: tokens in a message", median(served.per_message), "tokens"),
    ]


async def run(streams: int, rounds: int, window_s: float) -> Measured:
    figures = [figure for size in SIZES for figure in await run_size(size, streams, rounds, window_s)]
    return Measured(figures, {"streams": streams, "rounds": rounds, "window_s": window_s})


def measure(options: Options) -> Measured:
    if options.quick:
        return asyncio.run(run(QUICK_STREAMS, QUICK_ROUNDS, QUICK_WINDOW_S))
    return asyncio.run(run(options.streams, options.rounds, WINDOW_S))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, default=STREAMS, help="At once (default: %(default)s).")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="Of each kind (default: %(default)s).")


def main(argv: list[str] | None = None) -> None:
    run_benchmark("tokens", __doc__, measure, argv, add_options)


if __name__ == "__main__":
    main()
