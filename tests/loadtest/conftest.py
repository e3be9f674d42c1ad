"""One tritonserver and one server for all benchmarks: their scripts are put together, told apart by the names of their sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine.assets import demo_model_dir
from loadtest import (
    agent,
    bench_disconnect,
    bench_journal,
    bench_slow_readers,
    bench_stalls,
    bench_tokens,
    bench_turn,
    bench_workers,
)
from loadtest.system import System, scripted_system

BENCHMARKS = (
    bench_disconnect,
    bench_slow_readers,
    bench_tokens,
    bench_turn,
    bench_journal,
    bench_stalls,
    bench_workers,
)


def reply(script: dict[str, Any]) -> dict[str, Any]:
    """The script's default reply with its own time."""
    return {**script["default"], **script.get("timing", {"time_per_output_token_ms": 0})}


def combined_script() -> dict[str, Any]:
    return {
        "rules": [
            *bench_slow_readers.SCRIPT["rules"],
            {"session_regex": "fast-.*", **reply(bench_slow_readers.SCRIPT)},
            {"session_regex": "(one|two)-workers?-.*", **reply(bench_disconnect.SCRIPT)},
            {"session_regex": "load-.*", "text": "Done.", "end": True},
            {"session_regex": "agent-.*|warm-up", **reply(agent.script(agent.Writer(demo_model_dir())))},
        ],
        "default": reply(bench_tokens.SCRIPT),  # its bare reader names no session
    }


@pytest.fixture(scope="session")
def running_system() -> Iterator[System]:
    with asyncio.Runner() as runner:
        manager = scripted_system(
            combined_script(), demo_model_dir(), coalesce_ms=bench_slow_readers.COALESCE_MS, adaptive=False
        )
        yield runner.run(manager.__aenter__())
        runner.run(manager.__aexit__(None, None, None))


@pytest.fixture
def shared_system(running_system: System, monkeypatch: pytest.MonkeyPatch) -> System:
    """What every benchmark gets when it starts its system."""

    @asynccontextmanager
    async def given(*_: Any, **__: Any) -> AsyncIterator[System]:
        yield running_system

    for benchmark in BENCHMARKS:
        monkeypatch.setattr(benchmark, "scripted_system", given)
    return running_system
