"""What a load test runs against: the scripted model with the times of a GPU and a server in front of it, a server in front of any
Triton, or any server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer

from loadtest.shapes import OUTPUT_SIZES
from loadtest.speech import spoken
from loadtest.system import attached, scripted_system

OPENS, CLOSES = "<tool_call>\n", "\n</tool_call>"
CALL = OPENS + '{"name": "read_file", "arguments": {"path": "src/module_1.py"}}' + CLOSES
CALL_TOKENS = 26
TAIL_TOKENS = 64
"""Of a prompt, where the demanded length stands."""
TIMING = {"prefill_tokens_per_s": 20_000, "time_per_output_token_ms": 20, "jitter": 0.2, "slots": 256}
"""About one GPU with a model of middle size: 50 tokens/s a stream, prefill of 20k tokens/s, prefixes cached."""


@dataclass(frozen=True, slots=True)
class Target:
    """``pid`` of the server's process where it is ours; ``engine_log`` where the model is the scripted one."""

    url: str
    pid: int | None = None
    engine_log: Path | None = None


def script() -> dict[str, Any]:
    """For each length a reply: words, then a call. The last length that the prompt demands counts."""
    rules = [
        {"prompt_regex": f"(?s)size-{size} (?!.*size-[0-9])", "text": _reply(size), "end": True}
        for size in OUTPUT_SIZES
    ]
    return {"timing": TIMING, "tail_tokens": TAIL_TOKENS, "rules": rules, "default": {"text": "Done.", "end": True}}


def _reply(tokens: int) -> str:
    return "Let" + " me" * max(0, tokens - CALL_TOKENS) + (CALL if tokens > CALL_TOKENS else "")


class Sayings:
    """What the script's replies say (``loadtest.judge.Says``), by the model's own tokenizer."""

    def __init__(self, tokenizer: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))

    def __call__(self, ids: Sequence[int]) -> str:
        text, opened, call = self._tokenizer.decode(ids, skip_special_tokens=True).partition(OPENS)
        called = [orjson.loads(call.removesuffix(CLOSES))] if opened else []
        return spoken(text, [(each["name"], each["arguments"]) for each in called])


@asynccontextmanager
async def target(url: str | None, triton: str | None, tokenizer: Path, workers: int) -> AsyncIterator[Target]:
    """Raises: SystemFailed."""
    if url is not None:
        yield Target(url)
    elif triton is not None:
        async with attached(triton, tokenizer, "--workers", str(workers)) as server:
            yield Target(server.url, server.pid)
    else:
        async with scripted_system(script(), tokenizer, "--workers", str(workers)) as system:
            yield Target(system.server.url, system.server.pid, system.engine_log)
