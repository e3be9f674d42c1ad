"""A connection to a Triton, for tests that speak to it below the client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from engine.connection import Connection

CONNECT_S = 20.0


@asynccontextmanager
async def connection_to(address: str) -> AsyncIterator[Connection]:
    """One that is there, closed at the end."""
    connection = Connection(address)
    try:
        await connection.ready(CONNECT_S)
        yield connection
    finally:
        await connection.close()
