"""The engine of a configuration: a pool over its endpoints, which are named once or in a file that is followed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from adapter.config import Config
from adapter.logs import event
from engine.client import ClientOptions, TritonClient
from engine.endpoint_client import OpenClient
from engine.endpoint_list import checked_addresses, read_endpoints
from engine.errors import EndpointListError, EngineError
from engine.pool import Pool, PoolOptions
from engine.probe import probe
from engine.types import Engine

logger = logging.getLogger("rollserve.engine")

FILE_INTERVAL_S = 2.0
"""Between two looks at the file with the endpoints."""


def is_attached(config: Config) -> bool:
    """Whether the engine is somebody else's, and not embedded."""
    return bool(config.triton) or config.triton_file is not None


def configured_addresses(config: Config) -> tuple[str, ...]:
    """Of an attached engine, HOST:PORT each. Raises: EndpointListError."""
    if config.triton_file is not None:
        return read_endpoints(config.triton_file)
    return checked_addresses(config.triton, "triton")


def client_options(config: Config) -> ClientOptions:
    return ClientOptions(
        connect_timeout_s=config.connect_timeout_s,
        first_token_timeout_s=config.first_token_timeout_s,
        inactivity_timeout_s=config.inactivity_timeout_s,
        update_timeout_s=config.weights_timeout_s,
    )


@asynccontextmanager
async def engine_pool(
    config: Config, addresses: Sequence[str], look_every_s: float = FILE_INTERVAL_S
) -> AsyncIterator[Pool]:
    """A pool over ``addresses``, or over what the configured file has by then; it is closed at the end.

    Raises: ProbeFailed, if the endpoints are there and none is fit to be served from.
    """
    options = PoolOptions(failover_wait_s=config.failover_wait_s, start_wait_s=config.connect_timeout_s)
    async with Pool(addresses, _opening(client_options(config)), options) as pool:
        if config.triton_file is None:
            yield pool
            return
        following = asyncio.create_task(_follow(config.triton_file, tuple(addresses), pool, look_every_s))
        try:
            yield pool
        finally:
            following.cancel()


def weight_version(engine: Engine) -> int | None:
    """The engine's, if any of its endpoints was ever reached."""
    try:
        return engine.info.weight_version
    except EngineError:
        return None


def _opening(options: ClientOptions) -> OpenClient:
    async def open_client(address: str) -> TritonClient:
        return TritonClient(address, await probe(address, options=options), options)

    return open_client


async def _follow(path: Path, known: tuple[str, ...], pool: Pool, interval_s: float) -> None:
    """Read the file again and again; a file with a mistake changes nothing."""
    mistake = ""
    while True:
        await asyncio.sleep(interval_s)
        try:
            addresses = await asyncio.to_thread(read_endpoints, path)
        except EndpointListError as error:
            if str(error) != mistake:
                mistake = str(error)
                event(logger, logging.WARNING, "endpoints_not_read", message=mistake)
            continue
        mistake = ""
        if addresses != known:
            known = addresses
            event(logger, logging.INFO, "endpoints_read", endpoints=list(addresses))
            pool.use(addresses)
