"""A connection that is lost is noticed, however short the time until there is a new one."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from engine.client import ClientOptions, TritonClient
from engine.connection import Connection
from engine.errors import EngineUnavailable
from tests.engine.fake_triton import fake_triton, serving_all
from tests.engine.misbehaving import INFO, request
from tests.support.wait import LIMIT_S, until


async def restarted(server: AsyncExitStack, port: int, script: Any = None) -> None:
    """End what runs on the port, and start another there."""
    await server.aclose()
    await server.enter_async_context(fake_triton(script or serving_all(), port=port))


async def test_a_connection_that_stands_is_never_lost() -> None:
    async with fake_triton(serving_all()) as address:
        connection = Connection(address)
        for _ in range(3):
            await connection.ready(LIMIT_S)
        assert connection.losses == 0
        await connection.close()


async def test_a_lost_one_is_told_and_made_anew() -> None:
    async with AsyncExitStack() as server:
        address = await server.enter_async_context(fake_triton(serving_all()))
        connection, told = Connection(address), asyncio.Event()
        connection.on_loss = told.set
        await connection.ready(LIMIT_S)
        await server.aclose()
        async with asyncio.timeout(LIMIT_S):
            await told.wait()
        assert connection.losses == 1
        with pytest.raises(EngineUnavailable, match=r"no connection to Triton at .* within 0\.2 s"):
            await connection.ready(0.2)
        await restarted(server, int(address.rpartition(":")[2]))
        await connection.ready(LIMIT_S)
        assert connection.losses == 1
        await connection.close()


async def test_it_is_known_to_be_lost_before_the_first_answer_over_the_next_one() -> None:
    """Nobody looks meanwhile: the loss and the answer are in the same queue when this task looks again.

    A request that is sent into the dead connection is answered by nobody, and may be sent again.
    """
    async with AsyncExitStack() as server:
        address = await server.enter_async_context(fake_triton(serving_all()))
        async with TritonClient(address, INFO, ClientOptions(connect_timeout_s=LIMIT_S)) as client:
            for losses in range(5):
                try:
                    chunks = [client.losses async for _ in client.generate(request())]
                except EngineUnavailable:
                    chunks = [client.losses async for _ in client.generate(request())]
                assert chunks == [losses]
                await restarted(server, int(address.rpartition(":")[2]))


async def test_all_who_wait_for_a_connection_get_it() -> None:
    async with AsyncExitStack() as server:
        address = await server.enter_async_context(fake_triton(serving_all()))
        connection = Connection(address)
        await server.aclose()
        waiting = [asyncio.ensure_future(connection.ready(LIMIT_S)) for _ in range(20)]
        await restarted(server, int(address.rpartition(":")[2]))
        await asyncio.gather(*waiting)
        await connection.close()


async def test_who_waits_when_it_is_closed_waits_no_longer() -> None:
    connection = Connection("127.0.0.1:1")
    waiting = asyncio.ensure_future(connection.ready(LIMIT_S))
    await until(lambda: len(asyncio.all_tasks()) > 2)
    await connection.close()
    with pytest.raises(EngineUnavailable, match="is closed"):
        await waiting
    with pytest.raises(EngineUnavailable, match="is closed"):
        await connection.ready(LIMIT_S)
    await connection.close()
