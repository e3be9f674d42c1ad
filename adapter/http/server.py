"""Listening: one application on one socket, until it is told to stop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from adapter.http.app import build_app
from adapter.http.state import ServerState


@asynccontextmanager
async def listening(state: ServerState) -> AsyncIterator[str]:
    """Serve ``state`` on the configured address; gives the base URL, with the port that was taken.

    ``handler_cancellation``: a client that leaves cancels its handler, so the engine's slot is freed within milliseconds.
    ``auto_decompress``: ``adapter.http.encodings`` does it.
    """
    config = state.services.config
    runner = web.AppRunner(
        build_app(state),
        handler_cancellation=True,
        auto_decompress=False,
        access_log=None,
        shutdown_timeout=config.finish_grace_s,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, config.host, config.port).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
