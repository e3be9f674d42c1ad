"""One generation while it runs: a segment on one endpoint, and the ways to end it before its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

from engine.clock import Clock, Pulse
from engine.continuation import Continuation
from engine.endpoint import Client, Endpoint
from engine.errors import EngineError, EngineFailed
from engine.types import FinishReason, GenerateRequest, TokenChunk


class LiveGeneration:
    """Segments one after the other; ``cut`` ends the one that runs, at a token."""

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.progress = Continuation(request)
        self._running: tuple[Client, str] | None = None
        """The client of the segment that runs, and the id that the engine knows it by."""
        self._ended = Pulse()
        self._reading: asyncio.Timeout | None = None
        self._cut = False
        self._interrupted = False

    async def segment(self, endpoint: Endpoint) -> AsyncGenerator[TokenChunk, None]:
        """Chunks until the reply is complete (``progress.finished``) or the segment was cut. Raises: EngineError."""
        client = endpoint.client
        assert client is not None
        request = self.progress.next_request(endpoint.address)
        self._running, self._cut, self._interrupted = (client, request.request_id), False, False
        try:
            async with aclosing(client.generate(request)) as chunks:
                while (chunk := await self._read(chunks)) is not None:
                    endpoint.gave(chunk)
                    cancelled = chunk.finished is not None and chunk.finished.reason is FinishReason.CANCELLED
                    yield self.progress.accept(chunk, cut=cancelled)
                    if self.progress.finished or self._interrupted or (cancelled and self._cut):
                        return
                    if cancelled:
                        raise EngineFailed("the engine cancelled the generation")
            if not self._interrupted:
                raise EngineFailed("the engine ended the generation without its last chunk")
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
                self._interrupt()
        finally:
            stopping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await stopping

    def _interrupt(self) -> None:
        """At the next chunk, or at once if one is being waited for."""
        self._interrupted = True
        if self._reading is not None:
            self._reading.reschedule(asyncio.get_running_loop().time())

    async def _read(self, chunks: AsyncGenerator[TokenChunk, None]) -> TokenChunk | None:
        """The next chunk; None at the end of the iterator and when it is interrupted."""
        try:
            async with asyncio.timeout(None) as self._reading:
                return await anext(chunks, None)
        except TimeoutError:
            if not self._interrupted:
                raise
            return None
        finally:
            self._reading = None


async def _stop(client: Client, request_id: str) -> None:
    with contextlib.suppress(EngineError):
        await client.stop(request_id)
