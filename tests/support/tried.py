"""How many inputs a run of the tests made up: hypothesis' own counts, and those that a test tells by ``record_property``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

TRIED = "tried"
"""The property: what was tried, and how often each status was the answer. The same of several tests is added up."""

_EXAMPLES = re.compile(r"- (\d+) passing, (\d+) ")
_STATISTICS = "_hypothesis_stats"
"""Where hypothesis' pytest plugin keeps the statistics of a test, in the report of its end (``_hypothesis_pytestplugin.py``)."""

_KIND_PARTS = slice(1, 3)
"""Of a test's path, what tells its kind: ``adapter/parsing``."""


def tried(reports: Mapping[str, Iterable[Any]]) -> Iterator[str]:
    """Lines for the summary. ``reports`` are pytest's, by outcome, also those that came from other processes."""
    answers: dict[str, Counter[int]] = {}
    inputs: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for report in (report for kind in reports.values() for report in kind if hasattr(report, "when")):
        statistics = vars(report).get(_STATISTICS)
        if statistics:
            tests[_kind(report.nodeid)] += 1
            inputs[_kind(report.nodeid)] += sum(
                int(count) for found in _EXAMPLES.findall(statistics) for count in found
            )
        if report.when == "teardown":
            for what, counts in _told(report):
                answers.setdefault(what, Counter()).update(counts)
    yield from (_line(what, counts) for what, counts in answers.items())
    if answers:
        yield _line(f"in all, of {len(answers)} kinds", sum(answers.values(), Counter()))
    for kind in sorted(tests):
        yield f"made up by hypothesis: {inputs[kind]:6d} inputs in {tests[kind]:3d} tests of {kind}"
    if tests:
        yield f"made up by hypothesis: {inputs.total():6d} inputs in {tests.total():3d} tests in all"


def _kind(nodeid: str) -> str:
    """The folder of a test, or its file where there is none."""
    folders = nodeid.split("::")[0].split("/")[_KIND_PARTS]
    return "/".join(folder for folder in folders if not folder.endswith(".py")) or folders[0]


def _told(report: Any) -> Iterator[tuple[str, Counter[int]]]:
    for name, value in report.user_properties:
        if name == TRIED:
            what, statuses = value
            yield what, Counter({int(status): count for status, count in statuses.items()})


def _line(what: str, counts: Counter[int]) -> str:
    classes: Counter[int] = Counter()
    for status, count in counts.items():
        classes[status // 100] += count
    shares = ", ".join(f"{kind}xx: {count}" if kind else f"none: {count}" for kind, count in sorted(classes.items()))
    return f"tried {counts.total():5d}  {what}  ({shares})"
