"""A reply over HTTP: as a stream of server-sent events, or whole.

**Headers.** Everything that can be refused without the engine's work is refused before them, an engine that cannot be reached
included. Then they wait ``first_event_wait_s`` for the first token, so that what the engine refuses outright is a plain error
too: it takes 5 to 15 ms on a busy two-core machine with a real Triton, the first one 0.1 s, and clients grant 120 s (Qwen Code) or
more. A cold engine's first token takes longer than that wait, and finds the headers and the first event gone ahead of it.

**Afterwards** an error is the last event, and the connection is cut without the end of the chunked encoding: nothing of a failed
reply looks complete (``StreamStyle`` has the exception). After ``keepalive_s`` of silence, counted from the last byte written, the
protocol's sign of life is written.

**Slow readers.** A write waits while the socket's buffer is full, and holds up nobody else. A reader that takes no byte for
``stalled_reader_s`` while there are some is cut: what it has not taken is kept for it, and that must end some time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Self

from aiohttp import web

from adapter.buffer import EventsLost, Reader
from adapter.config import Config
from adapter.errors import AdapterError, Gone
from adapter.logs import event
from adapter.reply import LiveReply, ReplyState

logger = logging.getLogger("rollserve.http")

EVENT_STREAM = "text/event-stream"


class StreamBody:
    """What a reply's events are in the body of a response: themselves."""

    def feed(self, events: bytes) -> bytes:
        """``events`` are whole ones."""
        return events

    def finish(self) -> bytes:
        """What follows the events of a complete reply."""
        return b""


@dataclass(frozen=True, slots=True)
class StreamStyle:
    """How a protocol streams. ``body`` makes the body of one response."""

    body: Callable[[], StreamBody] = StreamBody
    media_type: str = EVENT_STREAM
    cut_after_error: bool = True
    """False for protocols whose error itself is what no complete reply ends with, and whose clients lose it to the cut."""


SERVER_SENT_EVENTS = StreamStyle()

WRITE_BYTES = 256 * 1024
"""About what one write takes at most: a slow reader gets fewer, larger writes, but none that doubles the memory of its reply."""

TICKS = 4
"""Looks at a connection within the shorter of its two limits."""


async def write_whole(reply: LiveReply, reader: Reader) -> web.Response:
    """The reply as one JSON body. Raises: AdapterError, if it failed."""
    while reply.open:
        await reader.more()
    if reply.error is not None:
        raise reply.error
    body = reader.take(WRITE_BYTES)
    # Handing the body to the server is the last that can be seen here; a client that left meanwhile has cancelled this handler.
    reply.delivered()
    return web.Response(body=body, content_type="application/json", headers=reply_headers(reply))


def reply_headers(reply: LiveReply) -> dict[str, str]:
    """The reply's own, and its number in its session, by which it can be read again."""
    return {**reply.headers, "x-rollserve-reply": str(reply.number)}


class Connection:
    """A response that stays open, as a context manager. ``on_silence`` is called after ``keepalive_s`` without a byte written."""

    def __init__(
        self, request: web.Request, config: Config, headers: Mapping[str, str], on_silence: Callable[[], None]
    ) -> None:
        self.response = web.StreamResponse(
            headers={"Content-Type": EVENT_STREAM, "Cache-Control": "no-cache", **headers}
        )
        self._request = request
        self._keepalive_s = config.keepalive_s
        self._stalled_s = config.stalled_reader_s
        self._on_silence = on_silence
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._last_byte_at = self._loop.time()
        self._writing = False
        self._unsent = 0
        """Bytes in the socket's buffer at the last look."""

    async def __aenter__(self) -> Self:
        await self.response.prepare(self._request)
        self._wait()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def write(self, data: bytes) -> None:
        """Raises: ConnectionError; CancelledError, once the client is gone or was cut."""
        await self._watched(self.response.write(data))

    async def end(self, last: bytes = b"") -> None:
        """End the response as complete, with ``last``. Raises: as ``write``."""
        await self._watched(self.response.write_eof(last))

    def cut(self) -> None:
        """End the connection so that nothing looks complete; what was written still goes out, if the client takes it in time."""
        self.response.force_close()
        transport = self._request.transport
        if transport is not None:
            transport.close()
            self._loop.call_later(self._stalled_s, transport.abort)

    async def _watched(self, writing: Awaitable[None]) -> None:
        """While something is written the reader has to make progress."""
        self._writing, self._last_byte_at = True, self._loop.time()
        try:
            await writing
        finally:
            self._writing = False
            self._last_byte_at = self._loop.time()

    def _wait(self) -> None:
        self._timer = self._loop.call_later(min(self._keepalive_s, self._stalled_s) / TICKS, self._look)

    def _look(self) -> None:
        self._wait()
        if self._writing:
            self._look_for_progress()
        elif self._loop.time() - self._last_byte_at >= self._keepalive_s:
            self._on_silence()

    def _look_for_progress(self) -> None:
        """A write that waits adds nothing to the socket's buffer, so the reader takes bytes if and only if that shrinks."""
        transport = self._request.transport
        if transport is None:
            return
        unsent = transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self._last_byte_at = unsent, self._loop.time()
        elif self._loop.time() - self._last_byte_at >= self._stalled_s:
            event(logger, logging.WARNING, "reader_stalled", path=self._request.path, unsent_bytes=unsent)
            transport.abort()


class EventStream:
    """One connection that reads one reply from its beginning, for the client that asked for it."""

    def __init__(
        self,
        request: web.Request,
        reply: LiveReply,
        reader: Reader,
        config: Config,
        style: StreamStyle = SERVER_SENT_EVENTS,
    ) -> None:
        self._request = request
        self._reply = reply
        self._reader = reader
        self._config = config
        self._style = style
        self._body = style.body()

    async def run(self) -> web.StreamResponse:
        """Raises: AdapterError, as long as no headers were sent."""
        await self._until_worth_headers()
        reply = self._reply
        headers = reply_headers(reply) | {"Content-Type": self._style.media_type}
        async with Connection(self._request, self._config, headers, self._reader.wake) as connection:
            try:
                await self._follow(connection)
            except EventsLost as lost:
                await self._write(connection, reply.error_event(Gone(str(lost))))
                await self._break_off(connection)
                return connection.response
            if reply.error is None:
                reply.delivered()
                await connection.end(self._body.finish())
            else:
                await self._fail(connection, reply.error)
            return connection.response

    async def _until_worth_headers(self) -> None:
        """Until the turn is prepared and has its first token, or has had its time for it. Raises: AdapterError."""
        reply = self._reply
        while reply.state is ReplyState.PREPARING:
            await self._reader.more()
        if not reply.answered and self._config.first_event_wait_s > 0:
            timer = asyncio.get_running_loop().call_later(self._config.first_event_wait_s, self._reader.wake)
            await self._reader.more(reply.events.end)
            timer.cancel()
        if reply.error is not None and not reply.answered:
            raise reply.error

    async def _follow(self, connection: Connection) -> None:
        reader = self._reader
        while not reader.at_end:
            data = reader.take(WRITE_BYTES)
            if data:
                await self._write(connection, data)
            elif not await reader.more():
                await self._write(connection, self._reply.keepalive)

    async def _write(self, connection: Connection, events: bytes) -> None:
        await connection.write(self._body.feed(events))

    async def _fail(self, connection: Connection, error: AdapterError) -> None:
        event(
            logger, logging.WARNING, "stream_failed", path=self._request.path, status=error.status, message=str(error)
        )
        await self._break_off(connection)

    async def _break_off(self, connection: Connection) -> None:
        """The error was the last event."""
        if self._style.cut_after_error:
            connection.cut()
        else:
            await connection.end()
