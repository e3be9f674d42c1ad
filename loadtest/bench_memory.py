"""What a session takes in memory: bytes for each distinct token that it recorded, and what an idle one takes beyond its content.

    python -m loadtest.bench_memory [--turns N] [--sessions N] [--tokenizer DIR]

A whole server in this process, in front of an engine that answers at once (``bench_growth``), with a journal in a temporary
folder. A session holds what dropping it gives back: the tokenizer's cache of words, for one, is the process's. Every object is
counted: the process runs itself again with ``PYTHONMALLOC=malloc``, so that malloc knows of all (``mallinfo2``), its own overhead
included.

    long    one agent, about 800 new and 60 sampled tokens a turn; what it holds, less the text of its messages once, over the
            distinct tokens: those of the last prompt and the sampled ones
    idle    many sessions of one short turn each that stay open; what one takes, less its text and its tokens at the goal's rate

Replies that are kept for clients that ask again have left memory before it is looked at.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import uvloop

from engine.assets import demo_model_dir
from loadtest.agent import Writer
from loadtest.bench_growth import InstantEngine, Server, large_bytes, serving
from loadtest.figures import Figure, Measured
from loadtest.program import Options, run_benchmark, say

TURNS, QUICK_TURNS = 100, 3
SESSIONS, QUICK_SESSIONS = 300, 5
NEW_TOKENS, OUTPUT_TOKENS = 800, 60
CONTEXT_TOKENS = 200_000
GOAL_TOKEN_BYTES, GOAL_IDLE_KB = 12.0, 20.0
KEEP_S = 1.0
"""For which a reply is kept to be given again, as ``bench_growth`` sets it up."""
EVERY_OBJECT = {"PYTHONMALLOC": "malloc"}


async def held(server: Server) -> int:
    """Bytes, once kept replies are let go of."""
    while server.sessions.replays.size:
        await server.call("GET", "/livez")
        await asyncio.sleep(0.1)
    gc.collect()
    return large_bytes()


async def freed(server: Server, sids: list[str]) -> int:
    """Bytes that these sessions held: what dropping them gives back."""
    before = await held(server)
    for sid in sids:
        await server.call("DELETE", f"/v1/sessions/{sid}")
    return before - await held(server)


class Talk:
    """One conversation in a session of its own; ``text_bytes`` and ``tokens`` are what it added so far."""

    def __init__(self, server: Server, sid: str, writer: Writer) -> None:
        self._server, self._sid, self._writer = server, sid, writer
        self._messages: list[dict[str, str]] = []
        self.text_bytes, self.tokens = 0, 0

    async def turn(self, new_tokens: int) -> None:
        text = self._writer.text(new_tokens)
        self._messages.append({"role": "user", "content": text})
        body = {"model": "rollserve", "max_tokens": 4096, "messages": self._messages}
        async with self._server.http.post(f"/s/{self._sid}/v1/messages", json=body) as response:
            reply = await response.json()
        said = "".join(block["text"] for block in reply["content"])
        self._messages.append({"role": "assistant", "content": said})
        self.text_bytes += len(text.encode()) + len(said.encode())
        self.tokens = reply["usage"]["input_tokens"] + reply["usage"]["output_tokens"]


async def talked(server: Server, sid: str, writer: Writer, turns: int) -> Talk:
    await server.call("POST", "/v1/sessions", {"sid": sid})
    talk = Talk(server, sid, writer)
    for _ in range(turns):
        await talk.turn(NEW_TOKENS)
    return talk


async def long(server: Server, writer: Writer, turns: int) -> list[Figure]:
    talk = await talked(server, "long", writer, turns)
    added = await freed(server, ["long"])
    say(f"{turns} turns: {talk.tokens} tokens, {talk.text_bytes / 1e3:.0f} kB of text, {added / 1e3:.0f} kB held")
    beyond = added - talk.text_bytes
    return [
        Figure("long: beyond the text", beyond / talk.tokens, "B a token", GOAL_TOKEN_BYTES),
        Figure("long: text", talk.text_bytes / talk.tokens, "B a token"),
        Figure("long: everything", added / talk.tokens, "B a token"),
    ]


async def idle(server: Server, writer: Writer, sessions: int) -> list[Figure]:
    content, names = 0.0, [f"idle-{number}" for number in range(sessions)]
    for sid in names:
        talk = await talked(server, sid, writer, 1)
        content += talk.text_bytes + GOAL_TOKEN_BYTES * talk.tokens
    added = await freed(server, names)
    return [
        Figure("idle: beyond its content", (added - content) / sessions / 1000, "kB", GOAL_IDLE_KB),
        Figure("idle: everything", added / sessions / 1000, "kB"),
    ]


async def run(folder: Path, turns: int, sessions: int) -> Measured:
    writer = Writer(folder)
    engine = InstantEngine(tokens=OUTPUT_TOKENS, context=CONTEXT_TOKENS)
    async with serving(folder, engine) as server:
        figures = [*await long(server, writer, turns), *await idle(server, writer, sessions)]
    return Measured(figures, {"turns": turns, "sessions": sessions})


def measure(options: Options) -> Measured:
    folder = options.tokenizer or demo_model_dir()
    if options.quick:
        return uvloop.run(run(folder, QUICK_TURNS, QUICK_SESSIONS))
    return uvloop.run(run(folder, options.turns, options.sessions))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--turns", type=int, default=TURNS, help="Of the long session (default: %(default)s).")
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="That are idle (default: %(default)s).")
    parser.add_argument("--tokenizer", type=Path, help="Folder with tokenizer.json (default: the demo model's).")


def main(argv: list[str] | None = None) -> None:
    run_benchmark("memory", __doc__, measure, argv, add_options)


def again() -> int:
    """This program with the environment in which every object is counted; gives its exit status."""
    environment: dict[str, Any] = {**os.environ, **EVERY_OBJECT}
    return subprocess.run([sys.executable, *sys.orig_argv[1:]], env=environment, check=False).returncode


if __name__ == "__main__":
    if all(os.environ.get(name) == value for name, value in EVERY_OBJECT.items()):
        main()
    else:
        sys.exit(again())
