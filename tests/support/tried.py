"""How many inputs a run of the tests made up: hypothesis' own counts, and those that a test tells by ``record_property``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

TRIED = "tried"
"""The property: what was tried, and how often each status was the answer."""

_EXAMPLES = re.compile(r"- (\d+) passing, (\d+) ")
_STATISTICS = "_hypothesis_stats"
"""Where hypothesis' pytest plugin keeps the statistics of a test, in the report of its end (``_hypothesis_pytestplugin.py``)."""


def tried(reports: Mapping[str, Iterable[Any]]) -> Iterator[str]:
    """Lines for the summary. ``reports`` are pytest's, by outcome, also those that came from other processes."""
    examples = tests = 0
    for report in (report for kind in reports.values() for report in kind if hasattr(report, "when")):
        statistics = vars(report).get(_STATISTICS)
        if statistics:
            tests += 1
            examples += sum(int(count) for found in _EXAMPLES.findall(statistics) for count in found)
        if report.when == "call":
            yield from _told(report)
    if tests:
        yield f"made up by hypothesis: {examples} inputs in {tests} tests"


def _told(report: Any) -> Iterator[str]:
    for name, value in report.user_properties:
        if name == TRIED:
            what, statuses = value
            counts = Counter({int(status): count for status, count in statuses.items()})
            shares = ", ".join(f"{status}: {count}" for status, count in sorted(counts.items()))
            yield f"tried {counts.total():5d}  {what}  ({shares})"
