"""The whole server, in one process or in several."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from adapter.config import Config
from adapter.journaling import prepared
from adapter.serving import Tell, configured_engine, everything, load_models
from adapter.workers.supervisor import workers


@asynccontextmanager
async def everything_in_one(config: Config, tell: Tell) -> AsyncIterator[str]:
    """Gives the server's URL. Raises: as ``everything``."""
    async with everything(config, tell) as server:
        yield server.url


@asynccontextmanager
async def everything_with_workers(config: Config, tell: Tell) -> AsyncIterator[str]:
    """Gives the URL that the workers share. Raises: as ``everything``; WorkersFailed."""
    load_models(config, tell)  # a mistake in these settings should not wait for an engine to start
    with prepared(config):
        async with configured_engine(config, tell) as triton, workers(config, triton) as url:
            yield url
