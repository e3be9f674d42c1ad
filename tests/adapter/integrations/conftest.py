"""The adapter's own fixtures, and a place from which agents of the tests can be started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapter.http.conftest import encode, qwen, serve

__all__ = ["encode", "qwen", "serve"]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents run in a folder of their own and still find the tests."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    for name in ("ROLLSERVE_URL", "SLIME_ROLLSERVE_URL", "SLIME_ROLLSERVE_COMMAND"):
        monkeypatch.delenv(name, raising=False)
