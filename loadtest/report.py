"""A load test's report: one HTML file that needs no other, its plots drawn as SVG."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from loadtest.figures import percentile, table
from loadtest.verdict import Outcome, Series, over_time
from loadtest.watch import beyond_content

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 860, 240, 60, 24, 10
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
BINS = 60
"""Points of a curve over the whole time, about."""
MOST_NOTES = 50

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:15px system-ui,sans-serif;max-width:900px;margin:2em auto}}pre{{background:#f5f5f5;padding:1em;
overflow:auto}}.pass{{color:#187a2f}}
.fail{{color:#b3261e}}svg{{width:100%;height:auto}}text{{font:12px system-ui,sans-serif}}</style>
<h1>{title}</h1><h2 class="{mark}">Verdict: {mark}</h2><pre>{figures}</pre>{notes}{plots}</html>
"""


def write(outcome: Outcome, file: Path) -> None:
    """The report of ``outcome``."""
    plots = "".join(plot(title, unit, series) for title, unit, series in curves(outcome))
    notes = "\n".join(outcome.findings.notes[:MOST_NOTES])
    page = PAGE.format(
        title=html.escape(outcome.title),
        mark="pass" if outcome.passed else "fail",
        figures=html.escape(table(outcome.figures, {})),
        notes=f"<h3>What was lost or changed</h3><pre>{html.escape(notes)}</pre>" if notes else "",
        plots=plots,
    )
    file.write_text(page, encoding="utf-8")


def curves(outcome: Outcome) -> list[tuple[str, str, Series]]:
    """Title, unit and curves of each plot."""
    turns, watch = outcome.seconds.turns, outcome.watch
    times = [turn["at"] for turn in turns] or [0.0]
    start = min(times)
    width = max(1.0, (max(times) - start) / BINS)
    ended = outcome.seconds.ended

    def latency(key: str) -> Series:
        return {f"p{percent}": _percentile_over_time(ended, start, width, key, percent) for percent in (50, 90, 99)}

    cpu: Series = {}
    memory: Series = {}
    for sample in watch.samples:
        cpu.setdefault(sample.name, []).append((sample.at - start, sample.cpu))
        memory.setdefault(sample.name, []).append((sample.at - start, sample.memory))
    failed = [turn for turn in turns if turn["error"] is not None]
    rates: Series = {
        "turns/s": over_time(ended, start, width, lambda some: len(some) / width),
        "errors/s": over_time(failed, start, width, lambda some: len(some) / width),
    }
    tokens = over_time(ended, start, width, lambda some: sum(turn["output_tokens"] for turn in some) / width)
    content: Series = {
        "sessions and kept events, by its own account": [(at - start, value) for at, value in watch.content],
        "resident beyond them": [(at - start, value) for at, value in beyond_content(watch)],
    }
    late: Series = {
        "server, p99 per second": [(at - start, ms) for at, ms in watch.stalls],
        "load generator, longest per second": [(lag["at"] - start, lag["lag_ms"]) for lag in outcome.seconds.lags],
    }
    return [
        ("Time to first token", "ms", latency("ttft_ms")),
        ("Longest gap between two pieces of output", "ms", latency("gap_ms")),
        ("Turn", "ms", latency("turn_ms")),
        ("Throughput", "1/s", rates),
        ("Output tokens", "tokens/s", {"tokens/s": tokens}),
        ("CPU per process", "cores", _largest(cpu)),
        ("Memory per process", "MB", _largest(memory)),
        ("The server's sessions, and its memory beyond them", "MB", content),
        ("Lag of the event loops", "ms", late),
    ]


def _percentile_over_time(
    turns: list[dict[str, Any]], start: float, width: float, key: str, percent: float
) -> list[tuple[float, float]]:
    return over_time(turns, start, width, lambda some: percentile([turn[key] for turn in some], percent))


def _largest(series: Series) -> Series:
    """No more than there are colours."""
    peaks = sorted(series, key=lambda name: max(value for _, value in series[name]), reverse=True)
    return {name: series[name] for name in peaks[: len(COLOURS)]}


def plot(title: str, unit: str, series: Series) -> str:
    """One plot with its heading; curves without points are left out."""
    drawn = with_points(series)
    if not drawn:
        return ""
    legend = " ".join(
        f'<span style="color:{COLOURS[place % len(COLOURS)]}">&#9632; {html.escape(name)}</span>'
        for place, name in enumerate(drawn)
    )
    head = f"<h3>{html.escape(title)}, {html.escape(unit)}</h3><p>{legend}</p>"
    return f'{head}<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{lines(drawn)}</svg>'


def with_points(series: Series) -> Series:
    return {name: points for name, points in series.items() if points}


def lines(drawn: Series) -> str:
    """Axes and curves, as elements of an SVG of ``WIDTH`` by ``HEIGHT``; every curve has points."""
    last = max(at for points in drawn.values() for at, _ in points) or 1.0
    most = max(value for points in drawn.values() for _, value in points) or 1.0
    parts = [_axes(last, most)]
    for place, points in enumerate(drawn.values()):
        colour = COLOURS[place % len(COLOURS)]
        path = " ".join(f"{_x(at, last):.1f},{_y(value, most):.1f}" for at, value in points)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{path}"/>')
    return "".join(parts)


def _axes(last: float, most: float) -> str:
    parts = []
    for quarter in range(5):
        value, at = most * quarter / 4, last * quarter / 4
        y, x = _y(value, most), _x(at, last)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
        anchor = "end" if quarter == 4 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{at:.0f} s</text>')
    return "".join(parts)


def _x(at: float, last: float) -> float:
    return LEFT + (WIDTH - LEFT) * max(0.0, at) / last


def _y(value: float, most: float) -> float:
    return TOP + (HEIGHT - BOTTOM - TOP) * (1 - value / most)
