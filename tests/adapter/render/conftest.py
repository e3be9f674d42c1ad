"""Renderers are loaded once in a run: a tokenizer takes seconds, and is never changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from adapter.render.prompt import Renderer
from tests.adapter.render.families import FAMILIES

Renderers = Callable[[str], Renderer]


@pytest.fixture(scope="session")
def renderers() -> Renderers:
    """By the family's name."""
    loaded: dict[str, Renderer] = {}

    def load(name: str) -> Renderer:
        if name not in loaded:
            loaded[name] = FAMILIES[name].load()
        return loaded[name]

    return load
