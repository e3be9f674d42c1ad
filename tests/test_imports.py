"""Imports go one way: every import statement in the project's packages is read and held against one table.

A module belongs to the layer of the longest name in ``LAYERS`` that it equals or lies under, and imports from its own
layer or from an earlier one. On top of that:

- ``engine`` never imports ``adapter``; neither imports ``loadtest``; ``model_repo`` and ``loadtest`` import nothing else
  of the project (models run inside Triton, load tests see the server as bytes), except the benchmarks ``loadtest.bench_*`` and
  ``loadtest.peers``, which measure functions of ``adapter``, and ``loadtest.gpu_*``, which verifies what it measured;
- only ``engine.repository`` names ``model_repo``, to find its files;
- the entries of the pure layer do not import one another: they meet in ``adapter.turn`` through ``adapter.types``;
- sans-I/O modules import no socket, no event loop and no clock.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
PACKAGES = ("engine", "adapter", "model_repo", "loadtest")

LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "engine.types",
        "engine.errors",
        "adapter.types",
        "adapter.errors",
        "adapter.config",
        "adapter.configuring",
        "adapter.ids",
        "adapter.jsontext",
        "adapter.handles",
        "adapter.access",
        "adapter.ownership",
        "adapter.logs",
        "adapter.buffer",
    ),
    (
        "engine.contract",
        "adapter.labels",
        "adapter.protocols",
        "adapter.render",
        "adapter.parsing",
        "adapter.trajectory",
        "adapter.sampling",
    ),
    ("engine", "adapter.storage", "adapter.guides"),
    (
        "adapter.engines",
        "adapter.no_effect",
        "adapter.engine_control",
        "adapter.holding",
        "adapter.pausing",
        "adapter.guiding",
        "adapter.prompting",
        "adapter.recorder",
        "adapter.records",
        "adapter.items",
        "adapter.session_bodies",
        "adapter.finished",
        "adapter.footprint",
        "adapter.admission",
        "adapter.metrics",
        "adapter.tracing",
        "adapter.tally",
        "adapter.exposition",
        "adapter.gauges",
        "adapter.watching",
        "adapter.session",
        "adapter.expiry",
        "adapter.exporting",
        "adapter.reply",
        "adapter.replies",
        "adapter.sampled",
        "adapter.responses",
        "adapter.feed",
        "adapter.restoring",
        "adapter.speeding_up",
        "adapter.loading",
        "adapter.journaling",
        "adapter.journal_check",
        "adapter.sessions",
        "adapter.served",
        "adapter.turn",
        "adapter.preparing",
    ),
    ("adapter.http",),
    ("adapter.serving",),
    ("adapter.workers",),
    (
        "adapter.cli",
        "adapter.acting",
        "adapter.engine_commands",
        "adapter.fleet_commands",
        "adapter.weights_commands",
        "adapter.options",
        "adapter.finite",
        "adapter.journal_commands",
        "adapter.loadtest_command",
        "adapter.remote",
        "adapter.demo",
        "adapter.views",
        "adapter.top",
        "adapter.top_view",
        "adapter.top_command",
        "adapter.doctor",
        "adapter.engine_checks",
        "adapter.integrations",
    ),
)
"""From the bottom up. A module of ``adapter`` that no entry covers is an error: decide where it belongs."""

PURE = 1
SANS_IO = (
    "engine.contract",
    "adapter.guides",
    "adapter.labels",
    "adapter.protocols",
    "adapter.parsing",
    "adapter.trajectory",
)
IO_MODULES = ("socket", "asyncio", "time", "subprocess", "http", "aiohttp", "grpc", "threading")
MAY_IMPORT = {
    "engine": ("engine",),
    "adapter": ("adapter", "engine"),
    "model_repo": ("model_repo",),
    "loadtest": ("loadtest",),
}
BENCHMARKS = ("loadtest.bench_", "loadtest.gpu_", "loadtest.peers")
BENCHMARKS_MAY_IMPORT = ("loadtest", "adapter", "engine")
ALLOWED = {("engine.repository", "model_repo")}


@dataclass(frozen=True, slots=True)
class Import:
    """``module`` imports ``target`` (a module, or a name in one) in ``line``."""

    module: str
    target: str
    line: int


def imports_of(root: Path) -> list[Import]:
    """All imports of the packages under ``root``, wherever in a file they stand."""
    files = [file for package in PACKAGES for file in sorted((root / package).rglob("*.py"))]
    return [found for file in files for found in _imports_of_file(file, file.relative_to(root))]


def _imports_of_file(file: Path, relative: Path) -> Iterator[Import]:
    parts = relative.with_suffix("").parts
    is_package = parts[-1] == "__init__"
    module = ".".join(parts[:-1] if is_package else parts)
    package = parts[:-1]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(module, name.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            source = ".".join([*base, *([node.module] if node.module else [])])
            for name in node.names:
                yield Import(module, f"{source}.{name.name}", node.lineno)


def _entry(module: str) -> tuple[int, str] | None:
    """Layer and name of the longest entry that covers ``module``."""
    found = [
        (layer, name)
        for layer, names in enumerate(LAYERS)
        for name in names
        if module == name or module.startswith(name + ".")
    ]
    return max(found, key=lambda pair: len(pair[1]), default=None)


def fault(imported: Import) -> str | None:
    """What is wrong with an import, or ``None``."""
    own, other = imported.module.split(".")[0], imported.target.split(".")[0]
    if other not in PACKAGES:
        is_sans_io = imported.module.startswith(SANS_IO)
        return f"is sans-I/O and imports {other}" if is_sans_io and other in IO_MODULES else None
    if (imported.module, imported.target) in ALLOWED:
        return None
    if other not in (BENCHMARKS_MAY_IMPORT if imported.module.startswith(BENCHMARKS) else MAY_IMPORT[own]):
        return f"{own} may not import {other}"
    if own in ("model_repo", "loadtest"):
        return None
    return _layer_fault(imported)


def _layer_fault(imported: Import) -> str | None:
    if imported.module in PACKAGES or imported.target in PACKAGES:
        return "the package itself is only a namespace" if imported.module != imported.target else None
    source, target = _entry(imported.module), _entry(imported.target)
    if source is None or target is None:
        return "a module that LAYERS does not cover"
    if target[0] > source[0]:
        return f"imports {imported.target}, which is {target[0] - source[0]} layer(s) above"
    if source[0] == target[0] == PURE and source[1] != target[1]:
        return f"pure code imports its neighbour {imported.target}"
    return None


def faults(root: Path) -> list[str]:
    """One line for each import that breaks a rule."""
    return [
        f"{found.module}:{found.line}: {reason}" for found in imports_of(root) if (reason := fault(found)) is not None
    ]


def test_the_project_imports_in_one_direction() -> None:
    assert len(imports_of(PROJECT)) > 50
    assert faults(PROJECT) == []


@pytest.mark.parametrize(
    ("file", "line", "reason"),
    [
        ("engine/client.py", "from adapter.types import Message", "engine may not import adapter"),
        (
            "engine/types.py",
            "from engine.contract import INPUTS",
            "imports engine.contract.INPUTS, which is 1 layer(s)",
        ),
        ("engine/launch.py", "import model_repo", "engine may not import model_repo"),
        ("engine/contract.py", "import asyncio", "is sans-I/O and imports asyncio"),
        ("adapter/protocols/anthropic.py", "from adapter.parsing import pipeline", "pure code imports its neighbour"),
        ("adapter/trajectory/tree.py", "from ..turn import run", "imports adapter.turn.run, which is 2 layer(s)"),
        ("adapter/turn.py", "def f():\n    from adapter.http import app", "imports adapter.http.app, which is 1"),
        ("adapter/http/app.py", "from adapter import cli", "imports adapter.cli, which is 3 layer(s)"),
        ("adapter/brand_new.py", "import engine.types", "a module that LAYERS does not cover"),
        ("model_repo/scripted/model.py", "from engine.contract import INPUTS", "model_repo may not import engine"),
        ("loadtest/client.py", "import adapter.types", "loadtest may not import adapter"),
        ("loadtest/bench_render.py", "import model_repo", "loadtest may not import model_repo"),
    ],
)
def test_a_bad_import_is_found(tmp_path: Path, file: str, line: str, reason: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(line, encoding="utf-8")
    assert len(faults(tmp_path)) == 1
    assert reason in faults(tmp_path)[0]


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("engine/repository.py", "import model_repo"),
        ("engine/client.py", "from engine.contract import INPUTS"),
        ("adapter/turn.py", "from engine.client import TritonClient\nfrom . import sessions"),
        ("adapter/protocols/anthropic.py", "import json\nfrom adapter.protocols.base import ReplyStream"),
        ("adapter/trajectory/__init__.py", "from .tree import Tree"),
        ("model_repo/scripted/model.py", "from model_repo.common import stop_words\nimport time"),
        ("loadtest/bench_render.py", "from adapter.render.prompt import Renderer\nimport engine.assets"),
    ],
)
def test_a_good_import_is_not(tmp_path: Path, file: str, line: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(line, encoding="utf-8")
    assert faults(tmp_path) == []
