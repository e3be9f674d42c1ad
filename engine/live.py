"""One generation while it runs: a segment on one endpoint, and the ways to end it before its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

from engine.clock import Clock, Pulse
from engine.continuation import Continuation
from engine.endpoint import Endpoint
from engine.endpoint_client import Client
from engine.errors import EngineError, EngineFailed, EngineProtocolError, EngineUnavailable
from engine.types import FinishReason, GenerateRequest, TokenChunk


class LiveGeneration:
    """Segments one after the other; ``cut`` ends the one that runs, at a token."""

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.progress = Continuation(request)
        self._running: tuple[Client, str] | None = None
        """The client of the segment that runs, and the id that the engine knows it by."""
        self._ended = Pulse()
        self._cut = False
        self._aborted = False

    async def segment(self, endpoint: Endpoint) -> AsyncGenerator[TokenChunk, None]:
        """Chunks until the reply is complete (``progress.finished``) or the segment was cut. Raises: EngineError."""
        client = endpoint.client
        assert client is not None
        losses, before = client.losses, self.progress.count
        request = self.progress.next_request(endpoint.address)
        self._running, self._cut, self._aborted = (client, request.request_id), False, False
        try:
            async with aclosing(client.generate(request)) as chunks:
                async for chunk in chunks:
                    if client.losses != losses and self.progress.count == before:
                        raise EngineUnavailable(
                            f"the connection to {endpoint.address} was lost: who answers there is checked"
                        )
                    endpoint.gave(chunk)
                    cancelled = chunk.finished is not None and chunk.finished.reason is FinishReason.CANCELLED
                    yield self.progress.accept(chunk, cut=cancelled)
                    if self.progress.finished or (cancelled and self._cut):
                        return
                    if cancelled:
                        raise EngineFailed("the engine cancelled the generation")
            raise EngineFailed("the engine ended the generation without its last chunk")
        except EngineError as error:
            if not self._aborted or isinstance(error, EngineProtocolError):
                raise
        finally:
            self._running = None
            self._ended.beat()

    async def cut(self, clock: Clock, grace_s: float) -> None:
        """End the segment that runs. What the engine has sampled by then still comes, if it comes within ``grace_s``."""
        if self._running is None:
            return
        client, request_id = self._running
        self._cut = True
        stopping = asyncio.ensure_future(_stop(client, request_id))
        try:
            if not await self._ended.wait(clock, grace_s):
                self._aborted = True
                client.abort(request_id)
        finally:
            stopping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await stopping


async def _stop(client: Client, request_id: str) -> None:
    with contextlib.suppress(EngineError):
        await client.stop(request_id)
