"""One server for the tests of all SDKs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.sdks.served import SCRIPT
from tests.support.scripted import ScriptedServer, scripted_server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ScriptedServer]:
    folder: Path = tmp_path_factory.mktemp("sdks")
    settings = {"served_model_name": "m", "reasoning_parser": "think"}
    async with scripted_server(folder, SCRIPT, coalesce_ms="0", **settings) as server:
        yield server
