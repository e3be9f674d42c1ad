"""The connection of one client: a gRPC channel that is watched, so that who sends something over it knows whether it was lost.

A channel makes a connection anew by itself, and a server that was restarted meanwhile answers as if nothing had happened. So the
channel's state is followed from one change to the next: gRPC tells each of them, however short, in the order of what comes over the
connection. A request is sent only over a connection that was seen, and ``losses`` is another number by the time that the first
answer over the next one is there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import grpc

from engine.channel import open_channel, open_stub
from engine.errors import EngineUnavailable

_READY = grpc.ChannelConnectivity.READY


def _nobody() -> None:
    """Nobody wants to know."""


class Connection:
    """To the server at ``address`` (``host:port``). It belongs to the running event loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = open_channel(address)
        self.stub = open_stub(self._channel)
        self.losses = 0
        """How often it was lost."""
        self.on_loss: Callable[[], None] = _nobody
        self._seen = grpc.ChannelConnectivity.IDLE
        self._moved = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    async def ready(self, timeout_s: float) -> None:
        """Costs next to nothing where there is one. Raises: EngineUnavailable, if none can be made in time."""
        if self._is_ready():
            return
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name=f"connection to {self._address}")
        try:
            async with asyncio.timeout(timeout_s):
                while not self._is_ready():
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError as error:
            raise EngineUnavailable(f"no connection to Triton at {self._address} within {timeout_s:g} s") from error

    async def close(self) -> None:
        """Cancel what is in flight, and whoever waits for a connection waits in vain."""
        self._closed = True
        self._moved.set()
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        await self._channel.close()

    def _is_ready(self) -> bool:
        """Also has gRPC make a connection where there is none. Raises: EngineUnavailable."""
        if self._closed:
            raise EngineUnavailable(f"the client of Triton at {self._address} is closed")
        return self._channel.get_state(try_to_connect=True) is _READY and self._seen is _READY

    async def _watch(self) -> None:
        """Until cancelled."""
        while True:
            await self._channel.wait_for_state_change(self._seen)
            before, self._seen = self._seen, self._channel.get_state()
            self._moved.set()
            if before is _READY:
                self.losses += 1
                self.on_loss()
