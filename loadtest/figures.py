"""What a benchmark finds, and the one form in which it is printed, stored and compared.

A result is a JSON object, the same for every benchmark, and says nothing of the state of the source:

    schema              1
    name                of the benchmark
    command             as it was started
    quick               whether it ran in the short form that only shows that it works; never compared with a long one
    seconds             that it took
    machine, versions   where it ran, and on what; ``loop_ms`` is how fast a fixed loop was, since other work slows a machine down
    figures             [{"name", "value", "unit", "goal", "met"}, ...]; ``goal`` is the largest value that is good enough, or null
    details             whatever else the benchmark says

The last result of each benchmark is kept in a folder that git ignores, and the next table shows it beside the new one.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson

SCHEMA = 1
PACKAGES = ("rollserve", "aiohttp", "grpcio", "numpy", "orjson", "tokenizers", "tritonclient", "uvloop")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. ``goal`` is the largest value that is good enough; None where nothing was set."""

    name: str
    value: float
    unit: str
    goal: float | None = None

    @property
    def met(self) -> bool | None:
        return None if self.goal is None else self.value <= self.goal

    def document(self) -> dict[str, Any]:
        return {"name": self.name, "value": self.value, "unit": self.unit, "goal": self.goal, "met": self.met}


@dataclass(frozen=True, slots=True)
class Measured:
    """What a benchmark gives back. ``text`` is printed above the table; ``details`` are stored."""

    figures: list[Figure]
    details: dict[str, Any] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """One run of one benchmark."""

    name: str
    command: str
    quick: bool
    seconds: float
    measured: Measured

    def document(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "name": self.name,
            "command": self.command,
            "quick": self.quick,
            "seconds": round(self.seconds, 1),
            "machine": machine(),
            "versions": versions(),
            "figures": [figure.document() for figure in self.measured.figures],
            "details": self.measured.details,
        }


def table(figures: Sequence[Figure], last: dict[str, float]) -> str:
    """One line a figure; ``last`` has the values of the last run by name."""
    width = max((len(figure.name) for figure in figures), default=6)
    lines = [f"{'figure':<{width}}  {'value':>10} {'unit':<9} {'goal':>9}  {'':<6} {'last run':>10}  change"]
    for figure in figures:
        goal = "" if figure.goal is None else f"<= {figure.goal:g}"
        met = {None: "", True: "met", False: "MISSED"}[figure.met]
        before = last.get(figure.name)
        seen = "" if before is None else f"{_short(before):>10}  {_change(before, figure.value)}"
        line = f"{figure.name:<{width}}  {_short(figure.value):>10} {figure.unit:<9} {goal:>9}  {met:<6} {seen}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def _short(value: float) -> str:
    """Four digits are more than any of these numbers is worth."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _change(before: float, now: float) -> str:
    return f"{(now / before - 1) * 100:+.0f} %" if before else ""


class Store:
    """The last result of each benchmark, a file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def last(self, name: str, quick: bool) -> dict[str, float]:
        """The figures of the last run, by name; empty if there was none that can be read."""
        try:
            document = orjson.loads(self._file(name, quick).read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return {}
        return {figure["name"]: figure["value"] for figure in document["figures"]}

    def keep(self, document: dict[str, Any]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file(document["name"], document["quick"]).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))

    def _file(self, name: str, quick: bool) -> Path:
        return self._folder / f"{name}{'.quick' if quick else ''}.json"


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of ``values`` do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, -int(-percent * len(ordered) // 100) - 1)]


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_average": round(os.getloadavg()[0], 2),
        "loop_ms": round(_loop_ms(), 1),
    }


def _loop_ms() -> float:
    """CPU milliseconds of a fixed piece of pure Python, the best of some: how fast this machine is at this moment."""
    return min(_timed_loop() for _ in range(5))


def _timed_loop() -> float:
    began = time.process_time()
    total = 0
    for number in range(200_000):
        total += number
    return (time.process_time() - began) * 1000


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def versions() -> dict[str, str]:
    found = {package: _version(package) for package in PACKAGES}
    return {"python": platform.python_version(), **{name: version for name, version in found.items() if version}}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
