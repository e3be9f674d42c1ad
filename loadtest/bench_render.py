"""What a turn's rendering and encoding costs as the history grows: only the new part, against the whole conversation.

    python -m loadtest.bench_render [--tokenizer DIR] [--repeats N] [--json FILE]

The history is an agent's: a system message, three tools, tool calls and results, up to 1k, 10k and 100k tokens. The turn brings one
tool result of 500 tokens. Columns, milliseconds of wall time, median of interleaved repeats:

    suffix       ``Renderer.suffix``: the new message behind stored ids
    full         ``Renderer.prompt``: everything rendered, control tokens kept apart from text, encoded
    library      the same template, the whole text encoded by the tokenizer's own ``encode_batch_fast``
    match        the request's history found in the session's tree, every message of it equal
    parse body   the request's JSON to neutral messages (Chat Completions)
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from adapter.protocols.openai_chat import OpenAIChat
from adapter.render.prompt import Renderer
from adapter.trajectory import Trajectory, TurnRecord
from adapter.types import HistoryPolicy
from engine.assets import demo_model_dir

HISTORY_TOKENS = (1_000, 10_000, 100_000)
TURN_TOKENS = 500
COLUMNS = ("suffix", "full", "library", "match", "parse body")
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


def workloads(renderer: Renderer, case: Case) -> dict[str, Callable[[], object]]:
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
        "match": lambda: session.match(replayed),
        "parse body": lambda: protocol.parse_request(orjson.loads(body)),
    }


def measure(work: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median milliseconds of each; repeats are interleaved, so that a slow moment of the machine hits all alike."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for repeat in range(repeats + 1):
        for name, run in work.items():
            start = time.perf_counter()
            run()
            if repeat:  # the first warms caches
                taken[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(times) for name, times in taken.items()}


def table(rows: dict[int, dict[str, float]]) -> str:
    smallest, largest = min(rows), max(rows)
    lines = [f"{'history tokens':>14}" + "".join(f"{name:>13}" for name in COLUMNS)]
    for tokens, row in rows.items():
        lines.append(f"{tokens:>14,}" + "".join(f"{row[name]:>10.2f} ms" for name in COLUMNS))
    ratios = (rows[largest][name] / rows[smallest][name] for name in COLUMNS)
    return "\n".join([*lines, f"{'growth':>14}" + "".join(f"{ratio:>12.1f}x" for ratio in ratios)])


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }


def arguments_of(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json; default: the demo model's")
    parser.add_argument("--template", type=Path, help="chat template in place of the tokenizer's")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, default=Path("bench_render.json"), help="where the figures go")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    arguments = arguments_of(argv)
    folder = arguments.tokenizer or demo_model_dir()
    renderer = Renderer.load(folder, arguments.template)
    rows = {}
    for tokens in HISTORY_TOKENS:
        case = make_case(renderer, tokens)
        rows[tokens] = measure(workloads(renderer, case), arguments.repeats)
    print(f"{folder.name}, a turn of {TURN_TOKENS} tokens, median of {arguments.repeats}; {machine()}")
    print(table(rows))
    figures = {"tokenizer": folder.name, "turn_tokens": TURN_TOKENS, "repeats": arguments.repeats, "machine": machine()}
    arguments.json.write_bytes(orjson.dumps({**figures, "milliseconds": {str(key): row for key, row in rows.items()}}))


if __name__ == "__main__":
    main()
