"""What a turn's rendering and encoding costs as the history grows: only the new part, against the whole conversation.

    python -m loadtest.bench_render [--tokenizer DIR] [--repeats N]

The history is an agent's: a system message, three tools, tool calls and results, up to 1k, 10k and 100k tokens. The turn brings one
tool result of 500 tokens. Milliseconds of wall time, median of interleaved repeats; the first two as a server does it that has
changed over to its second tokenizer:

    suffix       ``Renderer.suffix``: the new message behind stored ids
    full         ``Renderer.prompt``: everything rendered, control tokens kept apart from text, encoded
    library      the same template, the whole text encoded by the tokenizer's own ``encode_batch_fast``
    fastokens    the same by the fastest tokenizer there is for these ids, of text that it has never seen
    fast, seen   the same of the text of the last repeat, with its cache of segments; both only where fastokens has a wheel
    match        the request's history found in the session's tree, every message of it equal
    parse body   the request's JSON to neutral messages (Chat Completions)
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from adapter.protocols.openai_chat import OpenAIChat
from adapter.render.fast import fastokens
from adapter.render.prompt import Renderer
from adapter.trajectory import Trajectory, TurnRecord
from adapter.types import HistoryPolicy
from engine.assets import demo_model_dir
from loadtest.figures import Figure, Measured, median
from loadtest.program import Options, run_benchmark, say

HISTORY_TOKENS, QUICK_HISTORY_TOKENS = (1_000, 10_000, 100_000), (1_000, 2_000)
GOAL_GROWTH = 1.5
"""Of the new part's cost, from the shortest to the longest history: it should not follow the history at all."""
TURN_TOKENS = 500
COLUMNS = ("suffix", "full", "library", "fastokens", "fast, seen", "match", "parse body")
SEGMENT_CACHE = 256 * 1024 * 1024
"""Bytes; more than the longest history needs."""
DIGITS = "0123456789"
LINE = "src/module_{n}.py:{n}: def handler_{n}(request, *, retries={n}): return dispatch(request, timeout=2.5)  # {n}\n"


@dataclass(frozen=True)
class Case:
    """One conversation, ready to be rendered."""

    history: list[dict[str, Any]]
    new: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    tokens: int
    """Prompt tokens of the whole."""


def tool_result(renderer: Renderer, tokens: int, seed: int) -> dict[str, Any]:
    """A tool's output of about that many tokens, different for each seed."""
    lines: list[str] = []
    while len(renderer.encoder.encode("".join(lines))) < tokens:
        lines.append(LINE.format(n=seed * 1000 + len(lines)))
    return {"role": "tool", "content": "".join(lines)}


def tools() -> list[dict[str, Any]]:
    properties = {
        name: {"type": "string", "description": f"The {name} to use."} for name in ("path", "pattern", "text")
    }
    return [
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}",
                "description": f"Tool number {number} of the agent.",
                "parameters": {"type": "object", "properties": properties, "required": ["path"]},
            },
        }
        for number in range(3)
    ]


def call(number: int) -> dict[str, Any]:
    function = {"name": "tool_1", "arguments": {"path": f"src/module_{number}.py", "pattern": "def"}}
    message = {"role": "assistant", "content": f"Let me look at module {number}."}
    return {**message, "tool_calls": [{"type": "function", "function": function}]}


def make_case(renderer: Renderer, tokens: int) -> Case:
    """A history of about ``tokens`` tokens that ends with a tool call, and its result."""
    history = [
        {"role": "system", "content": "You are a coding agent."},
        {"role": "user", "content": "Fix the bug."},
        call(0),
    ]
    step = renderer.prompt([*history, tool_result(renderer, TURN_TOKENS, 0)], (), {}).ids.size
    size, number = renderer.prompt(history, tools(), {}).ids.size, 0
    while size + TURN_TOKENS // 2 < tokens:
        number += 1
        history += [tool_result(renderer, min(TURN_TOKENS, tokens - size), number), call(number)]
        size += step
    new = [tool_result(renderer, TURN_TOKENS, 999)]
    return Case(history, new, tools(), renderer.prompt([*history, *new], tools(), {}).ids.size)


def body_of(case: Case) -> bytes:
    """The request as a Chat Completions client sends it."""
    messages, open_calls = [], []
    for number, message in enumerate([*case.history, *case.new]):
        wire = dict(message)
        if message["role"] == "tool":
            wire["tool_call_id"] = open_calls.pop(0)
        if "tool_calls" in message:
            open_calls = [f"call_{number}"]
            function = message["tool_calls"][0]["function"]
            text = orjson.dumps(function["arguments"]).decode()
            wire["tool_calls"] = [
                {"id": open_calls[0], "type": "function", "function": {**function, "arguments": text}}
            ]
        messages.append(wire)
    return orjson.dumps({"model": "m", "messages": messages, "tools": case.tools})


def recorded(history: list[dict[str, Any]]) -> Trajectory:
    """A session whose turns made the assistant messages of ``history``; what they sampled plays no part in matching."""
    session = Trajectory(policy=HistoryPolicy.KEEP)
    ids = np.zeros(0, np.int32)
    for index, message in enumerate(history):
        if message["role"] == "assistant":
            prompt = np.append(ids, np.int32(index))
            turn = TurnRecord(prompt_ids=prompt, output_ids=prompt[:1], output_log_probs=np.zeros(1, np.float32))
            session.commit(session.match(history[:index]), turn, message)
            ids = np.append(prompt, prompt[:1])
    return session


def renumbered(messages: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """The same with other numbers in its texts, as many tokens but not the same text; unchanged for 0."""
    order = "".join(random.Random(number).sample(DIGITS, len(DIGITS))) if number else DIGITS
    return [{**message, "content": message["content"].translate(str.maketrans(DIGITS, order))} for message in messages]


def fastest(renderer: Renderer, case: Case, runs: int) -> dict[str, Callable[[], object]]:
    """A full render and an encode of the whole by fastokens, of texts that are new each of ``runs`` times, and of one text."""
    if fastokens is None:
        return {}
    description, whole = renderer.tokenizer.to_str(), [*case.history, *case.new]
    bare, caching = (fastokens.Tokenizer.from_json_str(description) for _ in range(2))
    caching.enable_segment_cache(SEGMENT_CACHE)
    unseen = iter([renumbered(whole, number) for number in range(runs)])

    def encoded(tokenizer: Any, messages: list[dict[str, Any]]) -> object:
        ids, _ = tokenizer.encode_batch_flat([renderer.template.render(messages, case.tools, {})])
        return np.frombuffer(ids, "<i4")

    return {"fastokens": lambda: encoded(bare, next(unseen)), "fast, seen": lambda: encoded(caching, whole)}


def workloads(renderer: Renderer, case: Case, runs: int) -> dict[str, Callable[[], object]]:
    """Each can be run so many times."""
    tail = np.array(renderer.end_ids[:1], np.int32)
    whole, body, protocol = [*case.history, *case.new], body_of(case), OpenAIChat()
    session, replayed = recorded(case.history), orjson.loads(orjson.dumps(whole))

    def library() -> object:
        text = renderer.template.render(whole, case.tools, {})
        return np.array(renderer.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids, np.int32)

    return {
        "suffix": lambda: renderer.suffix(case.new, case.tools, {}, output_tail=tail, called=("tool_1",)),
        "full": lambda: renderer.prompt(whole, case.tools, {}),
        "library": library,
        **fastest(renderer, case, runs),
        "match": lambda: session.match(replayed),
        "parse body": lambda: protocol.parse_request(orjson.loads(body)),
    }


def timed(work: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median milliseconds of each; repeats are interleaved, so that a slow moment of the machine hits all alike."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for repeat in range(repeats + 1):
        for name, run in work.items():
            start = time.perf_counter()
            run()
            if repeat:  # the first warms caches
                taken[name].append((time.perf_counter() - start) * 1e3)
    return {name: median(times) for name, times in taken.items()}


def measure(options: Options) -> Measured:
    folder = options.tokenizer or demo_model_dir()
    renderer = Renderer.load(folder, options.template)
    refused = renderer.encoder.speed_up()
    sizes, repeats = (QUICK_HISTORY_TOKENS, 1) if options.quick else (HISTORY_TOKENS, options.repeats)
    rows = {}
    for tokens in sizes:
        say(f"a history of {tokens} tokens")
        rows[tokens] = timed(workloads(renderer, make_case(renderer, tokens), repeats + 1), repeats)
    details = {"tokenizer": folder.name, "turn_tokens": TURN_TOKENS, "repeats": repeats, "library_because": refused}
    return Measured(figures_of(rows), details)


def figures_of(rows: dict[int, dict[str, float]]) -> list[Figure]:
    """``rows`` are milliseconds by history and column."""
    smallest, largest = min(rows), max(rows)
    figures = [
        Figure(f"{column} at {tokens // 1000}k", row[column], "ms")
        for column in COLUMNS
        for tokens, row in rows.items()
        if column in row
    ]
    growth = rows[largest]["suffix"] / rows[smallest]["suffix"]
    return [*figures, Figure("suffix: growth", growth, "x", GOAL_GROWTH)]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokenizer", type=Path, help="Folder with tokenizer.json (default: the demo model's).")
    parser.add_argument("--template", type=Path, help="Chat template in place of the tokenizer's.")
    parser.add_argument("--repeats", type=int, default=20, help="Default: %(default)s.")


def main(argv: list[str] | None = None) -> None:
    run_benchmark("render", __doc__, measure, argv, add_options)


if __name__ == "__main__":
    main()
