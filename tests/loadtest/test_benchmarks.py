"""Each benchmark in its quick form: it can be carried out, and prints and stores what it says. Times are not looked at."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pytest

from loadtest import (
    bench_disconnect,
    bench_growth,
    bench_journal,
    bench_render,
    bench_slow_readers,
    bench_tokens,
    bench_turn,
)
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
    bench_growth: [
        ("over: blocks", "a turn", True),
        ("endless: blocks", "a turn", True),
        ("over: journal", "B a turn", False),
    ],
    bench_render: [("suffix at 1k", "ms", False), ("suffix: growth", "x", True)],
}
"""Name, unit, whether there is a goal; some of each benchmark's."""


@pytest.fixture
def run(tmp_path: Path, shared_system: Any) -> Any:
    def run(benchmark: ModuleType, *options: str) -> dict[str, Any]:
        file = tmp_path / "result.json"
        benchmark.main(["--quick", "--json", str(file), "--store", str(tmp_path / "store"), *options])
        return orjson.loads(file.read_bytes())

    return run


@pytest.mark.parametrize("benchmark", FIGURES, ids=lambda module: module.__name__)
def test_a_benchmark_gives_its_figures(benchmark: ModuleType, run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(benchmark)
    found = {figure["name"]: figure for figure in result["figures"]}
    for name, unit, has_goal in FIGURES[benchmark]:
        assert (found[name]["unit"], found[name]["goal"] is not None) == (unit, has_goal)
        assert found[name]["met"] in ((True, False) if has_goal else (None,))
    assert result["name"] == benchmark.__name__.removeprefix("loadtest.bench_")
    assert result["quick"] is True
    assert result["machine"]["cores"] > 0
    assert result["versions"]["aiohttp"]
    printed = capsys.readouterr().out
    assert all(name in printed for name in found)


def test_slots_are_freed_by_the_engines_log(run: Any) -> None:
    figures = {figure["name"]: figure["value"] for figure in run(bench_disconnect)["figures"]}
    assert 0 < figures["all: p50"] <= figures["all: p99"] <= figures["all: max"] < bench_disconnect.FREED_S * 1000


def test_slow_readers_hold_up_their_own_replies(run: Any) -> None:
    """What a slow reader has not taken is more than its kernel holds, so the server's own writes wait."""
    result = run(bench_slow_readers)
    waiting = next(figure["value"] for figure in result["figures"] if figure["name"] == "waiting")
    assert bench_slow_readers.SLOW_BUFFER < waiting < bench_slow_readers.SLOW_TOKENS * 80


def test_streams_have_messages_of_the_size_that_was_asked_for(run: Any, shared_system: Any) -> None:
    """The shared model sends each token by itself, for both sizes; the benchmark counts what comes."""
    figures = {figure["name"]: figure["value"] for figure in run(bench_tokens)["figures"]}
    assert figures["4 a message: tokens in a message"] == pytest.approx(1, abs=0.1)
