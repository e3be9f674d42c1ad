"""Each benchmark in its quick form: it can be carried out, and prints and stores what it says. Times are not looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pytest

from loadtest import (
    bench_disconnect,
    bench_growth,
    bench_journal,
    bench_memory,
    bench_render,
    bench_slow_readers,
    bench_stalls,
    bench_tokens,
    bench_turn,
    bench_workers,
)
from loadtest.system import System
from loadtest.wire import PROTOCOLS

KINDS = [f"{protocol} {way}" for protocol in PROTOCOLS for way in ("streamed", "whole")]
FIGURES: dict[ModuleType, list[tuple[str, str, bool]]] = {
    bench_disconnect: [
        *((f"{kind}: p99", "ms", True) for kind in KINDS),
        ("all: max", "ms", True),
        ("all, two workers: p99", "ms", True),
    ],
    bench_slow_readers: [
        ("gap between tokens: p99 with / without", "x", True),
        ("turn: p99 with / without", "x", True),
        ("waiting", "bytes", False),
    ],
    bench_turn: [("CPU at 10k", "ms", False), ("CPU at 12k / 10k", "x", True), ("first turn, 8k cold", "ms", False)],
    bench_tokens: [
        ("4 a message: token", "us CPU", True),
        ("16 a message: token", "us CPU", True),
        ("16 a message: message / bare reader's", "x", True),
    ],
    bench_journal: [("fsync: share of the turn's CPU", "%", True), ("fsync: time added at p50", "ms", True)],
    bench_memory: [("long: beyond the text", "B a token", True), ("idle: beyond its content", "kB", True)],
    bench_stalls: [
        ("CPU a turn", "ms", True),
        ("added latency p99", "ms", True),
        ("loop lag p99", "ms", True),
        ("loop lag, longest, 1 cold sessions", "ms", True),
    ],
    bench_workers: [
        ("two workers / one", "x", True),
        ("passed on, at the session's URL", "requests", True),
        ("passed on, any address", "requests", False),
    ],
    bench_growth: [
        ("over: blocks", "a turn", True),
        ("endless: blocks", "a turn", True),
        ("over: journal", "B a turn", False),
    ],
    bench_render: [("suffix at 1k", "ms", False), ("suffix: growth", "x", True)],
}
"""Name, unit, whether there is a goal; some of each benchmark's."""


@dataclass(frozen=True)
class Ran:
    """What a benchmark wrote and printed. ``values`` are its figures by name."""

    result: dict[str, Any]
    printed: str

    @property
    def values(self) -> dict[str, float]:
        return {figure["name"]: figure["value"] for figure in self.result["figures"]}


Run = Callable[[ModuleType], Ran]


@pytest.fixture(scope="module")
def runs() -> dict[ModuleType, Ran]:
    """Each benchmark is run once."""
    return {}


@pytest.fixture
def run(tmp_path: Path, shared_system: System, runs: dict[ModuleType, Ran], capsys: pytest.CaptureFixture[str]) -> Run:
    def run(benchmark: ModuleType) -> Ran:
        if benchmark not in runs:
            file = tmp_path / "result.json"
            benchmark.main(["--quick", "--json", str(file), "--store", str(tmp_path / "store")])
            runs[benchmark] = Ran(orjson.loads(file.read_bytes()), capsys.readouterr().out)
        return runs[benchmark]

    return run


@pytest.mark.parametrize("benchmark", FIGURES, ids=lambda module: module.__name__)
def test_a_benchmark_gives_its_figures(benchmark: ModuleType, run: Run) -> None:
    ran = run(benchmark)
    found = {figure["name"]: figure for figure in ran.result["figures"]}
    for name, unit, has_goal in FIGURES[benchmark]:
        assert (found[name]["unit"], found[name]["goal"] is not None) == (unit, has_goal)
        assert found[name]["met"] in ((True, False) if has_goal else (None,))
    assert ran.result["name"] == benchmark.__name__.removeprefix("loadtest.bench_")
    assert ran.result["quick"] is True
    assert ran.result["machine"]["cores"] > 0
    assert ran.result["versions"]["aiohttp"]
    assert all(name in ran.printed for name in found)


def test_slots_are_freed_by_the_engines_log(run: Run) -> None:
    values = run(bench_disconnect).values
    assert 0 < values["all: p50"] <= values["all: p99"] <= values["all: max"] < bench_disconnect.FREED_S * 1000


def test_slow_readers_hold_up_their_own_replies(run: Run) -> None:
    """What a slow reader has not taken is more than its kernel holds, so the server's own writes wait."""
    waiting = run(bench_slow_readers).values["waiting"]
    assert bench_slow_readers.SLOW_BUFFER < waiting < bench_slow_readers.SLOW_TOKENS * 80


def test_messages_and_tokens_are_counted_as_they_come(run: Run) -> None:
    """The shared model sends each token by itself."""
    assert run(bench_tokens).values["4 a message: tokens in a message"] == pytest.approx(1, abs=0.1)
