"""One way to start the adapter in front of a fake engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from adapter.config import Config
from adapter.render.prompt import Renderer
from tests.support.assets import tokenizer_dir
from tests.support.engine import FakeEngine
from tests.support.ids import FixedIds
from tests.support.server import TestServer, serving

Serve = Callable[..., AbstractAsyncContextManager[TestServer]]


@pytest.fixture(scope="session")
def qwen() -> Path:
    return tokenizer_dir("qwen2_5")


@pytest.fixture(scope="session")
def encode(qwen: Path) -> Callable[[str], list[int]]:
    """Text to ids; special tokens in the text become their ids."""
    tokenizer = Renderer.load(qwen).tokenizer
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture
def serve(qwen: Path) -> Serve:
    @asynccontextmanager
    async def start(engine: FakeEngine, **settings: object) -> AsyncIterator[TestServer]:
        config = Config(served_model_name="slime-actor", **settings)  # type: ignore[arg-type]
        async with serving(engine, qwen, config, FixedIds()) as server:
            yield server

    return start
