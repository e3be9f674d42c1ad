"""The frame of the benchmarks: figures against goals and the last run, and one command that runs them all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from loadtest import bench
from loadtest.figures import Figure, Measured, Result, Store, percentile, table
from loadtest.program import Options, run_benchmark


@pytest.mark.parametrize(("value", "goal", "met"), [(1.0, None, None), (1.0, 1.0, True), (1.1, 1.0, False)])
def test_a_figure_meets_its_goal(value: float, goal: float | None, met: bool | None) -> None:
    assert Figure("f", value, "ms", goal).met is met


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([5.0], 99, 5.0),
        ([1, 2, 3, 4], 50, 2),
        (list(range(1, 101)), 99, 99),
        (list(range(1, 102)), 99, 100),
        ([3, 1], 0, 1),
    ],
)
def test_percentiles_are_values_that_were_seen(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == expected


def test_the_table_has_goals_and_the_last_run() -> None:
    figures = [Figure("one", 2.0, "ms", 1.0), Figure("another", 12345.6, "B"), Figure("third", 0.5, "x", 1.0)]
    lines = table(figures, {"one": 1.0, "third": 0.0}).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["one", "2", "ms", "<=", "1", "MISSED", "1", "+100", "%"],
        ["another", "12,346", "B"],
        ["third", "0.5", "x", "<=", "1", "met", "0"],
    ]


def result(quick: bool = False, value: float = 1.0) -> dict[str, Any]:
    return Result("some", "command", quick, 1.0, Measured([Figure("f", value, "ms", 1.0)])).document()


def test_the_last_run_is_kept_quick_ones_apart(tmp_path: Path) -> None:
    store = Store(tmp_path / "new")
    assert store.last("some", quick=False) == {}
    store.keep(result(value=3.0))
    store.keep(result(quick=True, value=7.0))
    assert (store.last("some", quick=False), store.last("some", quick=True)) == ({"f": 3.0}, {"f": 7.0})
    (tmp_path / "new" / "some.json").write_bytes(b"half a fi")
    assert store.last("some", quick=False) == {}


def test_a_benchmark_is_compared_with_its_last_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = iter([2.0, 3.0])

    def measure(options: Options) -> Measured:
        return Measured([Figure("f", next(values), "ms")], {"option": options.own}, "a text")

    for _ in range(2):
        run_benchmark(
            "some",
            "doc",
            measure,
            ["--store", str(tmp_path), "--own", "x"],
            lambda parser: parser.add_argument("--own"),
        )
    text, head, line, _where = capsys.readouterr().out.splitlines()[4:]
    assert (text, head.split()[0]) == ("a text", "figure")
    assert line.split() == ["f", "3", "ms", "2", "+50", "%"]
    kept = orjson.loads((tmp_path / "some.json").read_bytes())
    assert (kept["schema"], kept["details"]) == (1, {"option": "x"})
    assert kept["command"] == f"python -m loadtest.bench_some --store {tmp_path} --own x"


def test_every_benchmark_is_found() -> None:
    assert {"disconnect", "growth", "journal", "render", "slow_readers", "tokens", "turn"} <= set(bench.names())


def test_one_command_runs_those_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def started(command: list[str], check: bool) -> SimpleNamespace:
        commands.append(command)
        if "loadtest.bench_turn" in command:
            return SimpleNamespace(returncode=1)
        Path(command[command.index("--json") + 1]).write_bytes(orjson.dumps(result(quick=True, value=2.0)))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", started)
    file = tmp_path / "all.json"
    options = ["--quick", "--only", "tokens", "--only", "turn", "--json", str(file), "--store", str(tmp_path)]
    assert bench.main(options) == 1
    assert [command[:3] for command in commands] == [
        [sys.executable, "-m", "loadtest.bench_tokens"],
        [sys.executable, "-m", "loadtest.bench_turn"],
    ]
    assert all("--quick" in command for command in commands)
    assert [one["name"] for one in orjson.loads(file.read_bytes())] == ["some"]
    printed = capsys.readouterr().out
    assert "0 of 1 goals met" in printed
    assert "some: f is 2 ms, the goal is <= 1" in printed
    assert "turn: FAILED" in printed
