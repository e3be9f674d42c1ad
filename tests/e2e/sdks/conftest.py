"""One server for the tests of all SDKs, and for those of one SDK of each protocol another: TensorRT-LLM's C++ model's dialect.

With ``TEST_DIALECT=cumulative`` that dialect is the only one, for all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.sdks.served import SCRIPT
from tests.support.scripted import ScriptedServer, dialects, scripted_server

OVER_BOTH = ("test_anthropic", "test_openai_chat", "test_openai_responses", "test_google_genai")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        over_both = metafunc.module.__name__.rpartition(".")[2] in OVER_BOTH
        metafunc.parametrize("server", dialects() if over_both else dialects()[:1], indirect=True, ids=str)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[ScriptedServer]:
    folder: Path = tmp_path_factory.mktemp("sdks")
    settings = {"served_model_name": "m", "reasoning_parser": "think", "dialect": request.param}
    async with scripted_server(folder, SCRIPT, coalesce_ms="0", **settings) as server:
        yield server
