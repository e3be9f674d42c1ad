"""A load test's report as one picture: what decided, and the plots that say most. SVG, for a README."""

from __future__ import annotations

import html
from pathlib import Path

from loadtest.report import COLOURS, HEIGHT, WIDTH, curves, lines, with_points
from loadtest.verdict import Outcome, Series

PLOTS = ("Time to first token", "Throughput", "CPU per process", "The server's sessions, and its memory beyond them")
TITLE, LINE, HEAD, GAP = 34, 17, 44, 24
"""Heights: of the picture's title, of a line of text, of a plot's heading with its legend; between plots."""
LEGEND_COLUMN = 215
MOST_CURVES = 4


def write(outcome: Outcome, file: Path) -> None:
    """The picture of ``outcome``."""
    decided = [figure for figure in outcome.figures if figure.goal is not None]
    texts = [f"{each.name}: {each.value:,.4g} {each.unit} (at most {each.goal:g})" for each in decided]
    rows = (len(texts) + 1) // 2
    top = TITLE + rows * LINE + GAP
    parts = [
        f'<rect width="100%" height="100%" fill="#fff"/><text x="10" y="24" font-size="18">{_title(outcome)}</text>'
    ]
    for place, text in enumerate(texts):
        x, y = 10 + place // rows * WIDTH, TITLE + (place % rows + 1) * LINE
        parts.append(f'<text x="{x}" y="{y}">{html.escape(text)}</text>')
    shown = [(title, unit, series) for title, unit, series in curves(outcome) if title in PLOTS and with_points(series)]
    for place, (title, unit, series) in enumerate(shown):
        x, y = place % 2 * (WIDTH + GAP), top + place // 2 * (HEAD + HEIGHT + GAP)
        parts.append(f'<g transform="translate({x} {y})">{_plot(f"{title}, {unit}", with_points(series))}</g>')
    width, height = 2 * WIDTH + GAP, top + (len(shown) + 1) // 2 * (HEAD + HEIGHT + GAP)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
    file.write_text(f"{head}{''.join(parts)}</svg>\n", encoding="utf-8")


def _title(outcome: Outcome) -> str:
    return html.escape(f"{outcome.title}: verdict {'pass' if outcome.passed else 'fail'}")


def _plot(title: str, series: Series) -> str:
    drawn = dict(list(series.items())[:MOST_CURVES])
    legend = "".join(
        f'<text x="{10 + place * LEGEND_COLUMN}" y="{2 * LINE}" fill="{COLOURS[place]}">&#9632; {html.escape(name)}</text>'
        for place, name in enumerate(drawn)
    )
    return (
        f'<text x="10" y="{LINE}" font-size="14">{html.escape(title)}</text>{legend}'
        f'<g transform="translate(0 {HEAD})">{lines(drawn)}</g>'
    )
