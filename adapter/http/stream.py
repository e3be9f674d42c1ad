"""One reply over HTTP: as a stream of server-sent events, or whole.

Before the headers, a stream waits a short while for the first token, so that an engine that is down or refuses is a plain
error. Afterwards an error is an event and the connection is cut without the chunked encoding's end: nothing of a failed reply looks
complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from urllib.parse import quote

from aiohttp import web

from adapter.errors import AdapterError
from adapter.http.failures import ServerFault
from adapter.ids import IdSource
from adapter.logs import event
from adapter.protocols.base import ReplyStream
from adapter.protocols.common import dump_json
from adapter.turn import Turn
from adapter.types import ReplyEvent

logger = logging.getLogger("rollserve.http")


async def whole_reply(turn: Turn, *, model: str, reply_id: str, ids: IdSource, created: int) -> web.Response:
    """Run the turn to its end and answer with one JSON body. Raises: AdapterError."""
    async with aclosing(turn.events()) as batches:  # type: ignore[type-var]
        async for _ in batches:
            pass
    outcome = turn.outcome
    assert outcome is not None
    reply = turn.protocol.reply(outcome.parsed, outcome.reason, ids)
    body = turn.protocol.render_body(reply, reply_id=reply_id, model=model, usage=outcome.usage, created=created)
    return web.Response(body=dump_json(body), content_type="application/json", headers=debug_headers(turn))


class StreamedReply:
    """One streamed reply: the engine's batches become frames, each batch one write."""

    def __init__(
        self, request: web.Request, turn: Turn, frames: ReplyStream, *, first_event_wait_s: float, keepalive_s: float
    ) -> None:
        self._request = request
        self._turn = turn
        self._frames = frames
        self._first_event_wait_s = first_event_wait_s
        self._keepalive_s = keepalive_s
        self._response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache", **debug_headers(turn)}
        )
        self._last_write = 0.0

    async def run(self) -> web.StreamResponse:
        """Raises: AdapterError, as long as no headers were sent."""
        async with aclosing(self._turn.events()) as batches, self._first_batch(batches) as first:  # type: ignore[type-var]
            await self._response.prepare(self._request)
            await self._write(self._frames.start(int(self._turn.prompt_ids.size)))
            async with self._keepalives():
                await self._follow(first, batches)
        return self._response

    @asynccontextmanager
    async def _first_batch(
        self, batches: AsyncIterator[list[ReplyEvent]]
    ) -> AsyncIterator[asyncio.Task[list[ReplyEvent]]]:
        """The first batch as a task that has ended or has had its time."""

        async def next_batch() -> list[ReplyEvent]:
            return await anext(batches)

        first = asyncio.create_task(next_batch())
        try:
            await asyncio.wait({first}, timeout=self._first_event_wait_s)
            if first.done():
                first.result()
            yield first
        finally:
            if not first.done():
                first.cancel()
                await asyncio.wait({first})

    async def _follow(self, first: asyncio.Task[list[ReplyEvent]], batches: AsyncIterator[list[ReplyEvent]]) -> None:
        try:
            await self._write_batch(await first)
            async for batch in batches:
                await self._write_batch(batch)
        except ConnectionResetError:
            raise
        except AdapterError as error:
            await self._fail(error)
        except Exception:
            logger.exception("fault", extra={"fields": {"sid": self._turn.session.sid, "turn": self._turn.number}})
            await self._fail(ServerFault("internal error; the server's log has the details"))

    async def _write_batch(self, batch: list[ReplyEvent]) -> None:
        frames = self._frames.events(batch)
        outcome = self._turn.outcome
        if outcome is not None:
            frames += self._frames.finish(outcome.parsed, outcome.reason, outcome.usage)
        if frames:
            await self._write(frames)

    async def _fail(self, error: AdapterError) -> None:
        event(
            logger, logging.WARNING, "stream_failed", sid=self._turn.session.sid, turn=self._turn.number,
            status=error.status, message=str(error),
        )  # fmt: skip
        self._response.force_close()
        await self._write(self._frames.error(error))
        if self._request.transport is not None:
            self._request.transport.close()

    async def _write(self, frames: bytes) -> None:
        self._last_write = asyncio.get_running_loop().time()
        await self._response.write(frames)

    @asynccontextmanager
    async def _keepalives(self) -> AsyncIterator[None]:
        """Signs of life while the engine is silent, from a task of their own: the path of a token pays nothing for them."""
        task = asyncio.create_task(self._keep_alive())
        try:
            yield
        finally:
            task.cancel()

    async def _keep_alive(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._turn.outcome is None:
            silent_for = clock() - self._last_write
            if silent_for >= self._keepalive_s:
                await self._write(self._frames.keepalive())
                silent_for = 0.0
            await asyncio.sleep(self._keepalive_s - silent_for)


def debug_headers(turn: Turn) -> dict[str, str]:
    """Which session and turn this was, what the session's pinned values replaced, which fields had no effect."""
    headers = {"x-rollserve-session": quote(turn.session.sid), "x-rollserve-turn": str(turn.number)}
    if turn.sampling.overridden:
        headers["x-rollserve-pinned"] = ",".join(turn.sampling.overridden)
    if turn.request.unused_fields:
        headers["x-rollserve-unused-fields"] = quote(",".join(turn.request.unused_fields), safe=",._-[]")
    return headers
