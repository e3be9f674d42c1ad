"""The Grafana dashboard asks for what the server tells, and the README lists all of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.adapter.http.conftest import encode, qwen, serve
from tests.adapter.http.test_metrics import PooledEngine
from tests.support.engine import Answer

__all__ = ["encode", "qwen", "serve"]

PROJECT = Path(__file__).parents[2]
DASHBOARD = PROJECT / "model_repo" / "deploy" / "grafana-dashboard.json"
OURS = re.compile(r"\brollserve_[a-z0-9_]+")
SERIES = re.compile(r"\b((?:rollserve|process)_[a-z0-9_]+)(\{[^}]*\})?")
END = 151645


@pytest.fixture
async def told(serve, encode) -> dict[str, str]:
    """Each metric's type, by the name that it is asked for by."""
    engine = PooledEngine([Answer([[*encode("hello"), END]])])
    async with serve(engine) as server:
        async with server.http.post("/v1/messages", json={"messages": [{"role": "user", "content": "a"}]}) as response:
            assert response.status == 200
        async with server.http.get("/metrics") as response:
            return dict(re.findall(r"^# TYPE (\S+) (\S+)$", await response.text(), re.MULTILINE))


def expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels if panel["type"] != "row" for target in panel["targets"]]


async def test_every_metric_of_the_dashboard_is_told_and_every_one_told_is_on_it(told) -> None:
    asked = {name for expression in expressions() for name, _ in SERIES.findall(expression)}
    histograms = {name.removesuffix("_bucket") for name in asked if name.endswith("_bucket")}
    assert {name for name in histograms if told.get(name) != "histogram"} == set()
    asked = {name for name in asked if not name.endswith("_bucket")} | histograms
    assert asked - told.keys() == set()
    assert {name for name in told if name.startswith("rollserve_")} - asked == set()


async def test_counters_are_asked_for_as_rates_and_gauges_are_not(told) -> None:
    for expression in expressions():
        rates = set(re.findall(r"rate\(((?:rollserve|process)_[a-z0-9_]+)", expression))
        for name in {name for name, _ in SERIES.findall(expression)}:
            assert (name in rates) is (told.get(name) != "gauge"), expression


async def test_labels_of_the_dashboard_exist(serve, told) -> None:
    """What a panel filters or sums by is a label of its metric: a misspelt one would be an empty panel."""
    source = (PROJECT / "adapter" / "metrics.py").read_text() + (PROJECT / "adapter" / "gauges.py").read_text()
    known = {*re.findall(r'"([a-z]+)"', source), "worker", "le"}
    for expression in expressions():
        by = [label for group in re.findall(r"by \(([a-z, ]+)\)", expression) for label in group.split(", ")]
        assert {*by, *re.findall(r"(\w+)=~", expression)} <= known, expression


def test_panels_do_not_lie_over_one_another() -> None:
    taken: set[tuple[int, int]] = set()
    ids = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not taken & cells, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["id"] not in ids
        ids.add(panel["id"])


async def test_the_readme_lists_every_metric(told) -> None:
    section = (PROJECT / "README.md").read_text().partition("\n## Metrics\n")[2].partition("\n## ")[0]
    listed = set(OURS.findall(section))
    ours = {name for name in told if name.startswith("rollserve_")}
    assert (ours - listed, listed - ours) == (set(), set())
