"""One way to start the adapter in front of a fake engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from adapter.config import Config
from adapter.ids import ReplyIds
from adapter.render.prompt import Renderer
from tests.support.assets import tokenizer_dir
from tests.support.crashing import Crash
from tests.support.engine import FakeEngine
from tests.support.server import TestServer, serving

Serve = Callable[..., AbstractAsyncContextManager[TestServer]]


@pytest.fixture(scope="session")
def qwen() -> Renderer:
    """Loading a tokenizer takes seconds; it is never changed."""
    return Renderer.load(tokenizer_dir("qwen2_5"))


@pytest.fixture(scope="session")
def encode(qwen: Renderer) -> Callable[[str], list[int]]:
    """Text to ids; special tokens in the text become their ids."""
    return lambda text: qwen.tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture
def serve(qwen: Renderer) -> Serve:
    @asynccontextmanager
    async def start(engine: FakeEngine, ids: ReplyIds | None = None, **settings: object) -> AsyncIterator[TestServer]:
        config = Config(served_model_name="slime-actor", **settings)  # type: ignore[arg-type]
        async with serving(engine, qwen, config, ids) as server:
            yield server

    return start


@pytest.fixture(scope="session")
def nursery() -> Iterator[subprocess.Popen[str]]:
    """Forks servers that die, see ``tests.support.dying_server``."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.dying_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0


@pytest.fixture
def crash(nursery: subprocess.Popen[str], tmp_path: Path) -> Crash:
    return Crash(nursery, tmp_path)
