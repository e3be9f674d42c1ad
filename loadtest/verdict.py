"""What a load test found, as figures with thresholds: the verdict is a pass if all that have one are met.

A run whose generator was itself late is no pass: its times are not the server's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from loadtest.engine_log import EngineLog
from loadtest.figures import Figure, median, percentile
from loadtest.judge import Findings, Says, Seen, judge, judge_without_log
from loadtest.watch import Watch, beyond_content, highest

ERRORS_PERCENT, TTFT_P99_MS, STALL_P99_MS, GENERATOR_LAG_P99_MS = 1.0, 10_000.0, 100.0, 250.0
GROWTH_PERCENT, LONG_S = 5.0, 240.0
"""The server's memory beyond its sessions' content may grow by so much after the warm-up, in runs that last this long: a shorter
one ends before caches and allocators are as large as they get."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """What the generator wrote: lines of turns.jsonl and of lags.jsonl."""

    turns: list[dict[str, Any]]
    lags: list[dict[str, Any]]

    @property
    def ended(self) -> list[dict[str, Any]]:
        return [turn for turn in self.turns if turn["error"] is None and not turn["left"]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that the report shows."""

    title: str
    seconds: Seconds
    watch: Watch
    findings: Findings
    figures: list[Figure] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(figure.met is not False for figure in self.figures)


def read(folder: Path) -> Seconds:
    return Seconds(_lines(folder / "turns.jsonl"), _lines(folder / "lags.jsonl"))


def _lines(file: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []


def judge_all(folder: Path, engine_log: Path | None, says: Says | None) -> Findings:
    """Every session that a client held. A session without an export has lost all its turns, one at least.

    ``says`` goes with ``engine_log``.
    """
    log = None if engine_log is None else EngineLog(engine_log)
    found = Findings()
    for file in sorted((folder / "seen").iterdir()):
        sid, seen = file.name, [Seen(**each) for each in orjson.loads(file.read_bytes())]
        exported = folder / "exports" / sid
        if not exported.exists():
            found.add(Findings(1, len(seen), max(1, len(seen)), 0, [f"{sid}: could not be finished"]))
            continue
        export = json.loads(exported.read_bytes())
        if log is None or says is None:
            found.add(judge_without_log(sid, seen, export))
        else:
            found.add(judge(sid, seen, export, log.of(sid), says))
    return found


def figures(seconds: Seconds, watch: Watch, findings: Findings) -> list[Figure]:
    """Those with a goal decide."""
    ended, turns = seconds.ended, seconds.turns
    span = max((turn["at"] for turn in turns), default=0.0) - min((turn["at"] for turn in turns), default=0.0)
    lasted = max(span, 1.0)
    errors = sum(turn["error"] is not None for turn in turns)
    tokens = sum(turn["output_tokens"] for turn in ended)
    return [
        Figure("runs without a whole turn", 0 if ended else 1, "runs", 0),
        Figure("lost turns", findings.lost, "turns", 0),
        Figure("inexact turns", findings.inexact, "turns", 0),
        Figure("sessions judged", findings.sessions, "sessions"),
        Figure("turns judged", findings.turns, "turns"),
        Figure("errors", 100 * errors / max(1, len(turns)), "%", ERRORS_PERCENT),
        Figure("achieved rate", len(ended) / lasted, "turns/s"),
        Figure("achieved tokens", tokens / lasted, "tokens/s"),
        *_percentiles("time to first token", ended, "ttft_ms", TTFT_P99_MS),
        *_percentiles("longest gap in a turn", [turn for turn in ended if turn["pieces"] > 1], "gap_ms", None),
        *_percentiles("turn", ended, "turn_ms", None),
        Figure("server's event-loop lag p99", highest(watch.lags, 0.99) * 1000, "ms", STALL_P99_MS),
        _growth(beyond_content(watch)),
        Figure("generator's lag p99", _of([lag["lag_ms"] for lag in seconds.lags], 99), "ms", GENERATOR_LAG_P99_MS),
    ]


def _growth(memory: Sequence[tuple[float, float]]) -> Figure:
    """From the fifth of the time behind its middle to the last fifth, medians."""
    name = "server's memory growth beyond content"
    if not memory:
        return Figure(name, 0.0, "%")
    start, lasted = memory[0][0], memory[-1][0] - memory[0][0]
    middle = [value for at, value in memory if 0.5 <= (at - start) / max(lasted, 1) < 0.7]
    end = [value for at, value in memory if (at - start) / max(lasted, 1) >= 0.8]
    if not middle or not end:
        return Figure(name, 0.0, "%")
    return Figure(name, 100 * (median(end) / median(middle) - 1), "%", GROWTH_PERCENT if lasted >= LONG_S else None)


def _percentiles(name: str, turns: Sequence[dict[str, Any]], key: str, goal: float | None) -> list[Figure]:
    values = [turn[key] for turn in turns]
    return [Figure(f"{name} p50", _of(values, 50), "ms"), Figure(f"{name} p99", _of(values, 99), "ms", goal)]


def _of(values: Sequence[float], percent: float) -> float:
    return percentile(values, percent) if values else 0.0


Series = dict[str, list[tuple[float, float]]]


def over_time(
    turns: Sequence[dict[str, Any]], start: float, bin_s: float, value: Callable[[list[Any]], float]
) -> list[tuple[float, float]]:
    """``value`` of the turns that began in each bin; points are (seconds from ``start``, value)."""
    bins: dict[int, list[Any]] = {}
    for turn in turns:
        bins.setdefault(int((turn["at"] - start) / bin_s), []).append(turn)
    return [(number * bin_s, value(bins[number])) for number in sorted(bins)]
