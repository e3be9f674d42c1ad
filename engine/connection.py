"""The connection of one client to its server, and what is called over it.

Calls of the streaming method go over an HTTP/2 connection of our own (``http2_connection``), those of all others over a gRPC
channel, which makes its connection when the first of them is made.

A connection that is lost is made anew when somebody asks for one, and behind it may be another server, which answers as if nothing
had happened. A request is sent only over a connection that was seen, and ``losses`` is another number by the time that the first
answer over the next one is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from tritonclient.grpc import service_pb2_grpc

from engine.channel import open_channel, open_stub
from engine.errors import EngineUnavailable
from engine.grpc_call import GrpcCall, header_block
from engine.http2_connection import Http2Connection

logger = logging.getLogger("rollserve.engine")

STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"

ATTEMPT_S = 5.0
"""For one attempt: the TCP connection, and the server's first frame."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
"""Between attempts; doubled each time."""
FLUSH_S = 1.0
"""For the server to take the last bytes of a connection that is closed."""


def _nobody() -> None:
    """Nobody wants to know."""


class Connection:
    """To the server at ``address`` (``host:port``). It belongs to the running event loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._headers = header_block(address, STREAM_INFER)
        self._channel = open_channel(address)
        self.stub: service_pb2_grpc.GRPCInferenceServiceStub = open_stub(self._channel)
        """Of the methods that do not stream."""
        self.losses = 0
        """How often it was lost."""
        self.on_loss: Callable[[], None] = _nobody
        self._http2: Http2Connection | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    async def ready(self, timeout_s: float) -> None:
        """Costs next to nothing where there is one. Raises: EngineUnavailable, if none can be made in time."""
        if self._usable() is not None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected()
        except TimeoutError as error:
            raise EngineUnavailable(f"no connection to Triton at {self._address} within {timeout_s:g} s") from error

    async def stream_infer(self) -> GrpcCall:
        """A call of ``ModelStreamInfer``. If the connection was lost since it was ready, ``read`` says so."""
        call = GrpcCall()
        http2 = self._usable()
        if http2 is None:
            call.lost("the connection was lost")
        else:
            await call.open(http2, self._headers)
        return call

    async def close(self) -> None:
        """Cancel what is in flight, and whoever waits for a connection waits in vain."""
        self._closed.set()
        if self._attempt is not None:
            self._attempt.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._attempt
        if self._http2 is not None:
            self._http2.close("the connection was closed on our side")
            await self._http2.gone(FLUSH_S)
        await self._channel.close()

    def _usable(self) -> Http2Connection | None:
        """Raises: EngineUnavailable, if this side has closed it for good."""
        if self._closed.is_set():
            raise EngineUnavailable(f"the client of Triton at {self._address} is closed")
        return self._http2 if self._http2 is not None and self._http2.usable else None

    async def _connected(self) -> None:
        """Until there is a connection; all who wait share the attempts."""
        pause_s = FIRST_PAUSE_S
        while self._usable() is None:
            if self._attempt is None or self._attempt.done():
                self._attempt = asyncio.create_task(self._try(), name=f"connection to {self._address}")
            await asyncio.wait({self._attempt})
            if self._usable() is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._closed.wait()
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _try(self) -> None:
        """Make one. A failure is no connection, and nothing else."""
        host, _, port = self._address.rpartition(":")
        loop = asyncio.get_running_loop()
        http2: Http2Connection | None = None
        try:
            async with asyncio.timeout(ATTEMPT_S):
                _, http2 = await loop.create_connection(
                    lambda: Http2Connection(self._lost), host.strip("[]"), int(port)
                )
                await http2.ready
            self._http2 = http2
        except (OSError, TimeoutError) as error:
            logger.debug("no connection to %s: %r", self._address, error)
        finally:
            if http2 is not None and self._http2 is not http2:
                http2.close("no connection was made")

    def _lost(self, http2: Http2Connection) -> None:
        if http2 is self._http2 and not self._closed.is_set():
            self.losses += 1
            self.on_loss()
