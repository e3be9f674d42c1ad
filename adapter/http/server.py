"""Listening: one application on one socket, until it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from aiohttp import web

from adapter.config import ConfigError
from adapter.errors import Interrupted
from adapter.expiry import Expiry
from adapter.http.app import build_app
from adapter.http.auth import access
from adapter.http.connections import Runner
from adapter.http.state import STATE, ServerState


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. ``shared`` with other processes: the kernel deals out the connections."""

    host: str
    port: int
    shared: bool = False


Extend = Callable[[web.Application], None]
"""Adds to an application what is to be around its handlers."""


@contextmanager
def told_where(host: str, port: int) -> Iterator[None]:
    """Raises: ConfigError, for an address that cannot be listened on."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; see --host and --port") from error


@asynccontextmanager
async def listening(
    state: ServerState, addresses: Sequence[Address] = (), extend: Extend = lambda app: None
) -> AsyncIterator[str]:
    """Serve ``state`` on the configured address, or on those given; gives the first one's base URL, with the port that was taken.

    Raises: ConfigError, if one cannot be listened on.
    ``handler_cancellation``: a client that leaves cancels its handler, so the engine's slot is freed within milliseconds.
    ``auto_decompress``: ``adapter.http.encodings`` does it.
    """
    config = state.services.config
    app = build_app(state)
    app.on_shutdown.append(_end_feeds)
    extend(app)
    app.middlewares.append(access)
    runner = Runner(
        app,
        handler_cancellation=True,
        auto_decompress=False,
        access_log=None,
        shutdown_timeout=config.finish_grace_s,
    )
    await runner.setup()
    expiring = asyncio.create_task(Expiry(state.sessions, config).run())
    try:
        for address in addresses or [Address(config.host, config.port)]:
            with told_where(address.host, address.port):
                await web.TCPSite(runner, address.host, address.port, reuse_port=address.shared).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        expiring.cancel()
        await runner.cleanup()
        await _stop_replies(state)


async def _end_feeds(app: web.Application) -> None:
    """Followers of sessions would otherwise be waited for as long as a turn may take to end."""
    for session in app[STATE].sessions.live():
        session.feed.close()


async def _stop_replies(state: ServerState) -> None:
    """Those that run without a client, once all clients are gone."""
    running = [reply for session in state.sessions.live() for reply in session.replies.running()]
    await asyncio.gather(*(reply.interrupt(Interrupted("the server was stopped")) for reply in running))
