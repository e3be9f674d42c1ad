"""A reply over HTTP: as a stream of server-sent events, or whole.

Before the headers, a stream waits a short while for the first token, so that an engine that is down or refuses is a plain error.
Afterwards an error is an event and the connection is cut without the chunked encoding's end: nothing of a failed reply looks
complete.
"""

from __future__ import annotations

import logging

from aiohttp import web

from adapter.config import Config
from adapter.errors import AdapterError
from adapter.logs import event
from adapter.reply import LiveReply, ReplyState

logger = logging.getLogger("rollserve.http")

START_PIECES = 1
"""The first piece of a stream is its start, there before the engine has answered."""


async def write_whole(reply: LiveReply) -> web.Response:
    """The reply as one JSON body. Raises: AdapterError, if it failed."""
    while reply.open:
        await reply.more(len(reply.pieces))
    if reply.error is not None:
        raise reply.error
    # Handing the body to the server is the last that can be seen here; a client that left meanwhile has cancelled this handler.
    reply.delivered()
    return web.Response(body=reply.pieces[-1], content_type="application/json", headers=reply.headers)


class EventStream:
    """One connection that follows one reply."""

    def __init__(self, request: web.Request, reply: LiveReply, config: Config) -> None:
        self._request = request
        self._reply = reply
        self._config = config
        self._cursor = 0

    async def run(self) -> web.StreamResponse:
        """Raises: AdapterError, as long as no headers were sent."""
        await self._until_worth_headers()
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache", **self._reply.headers}
        )
        await response.prepare(self._request)
        while True:
            await self._write_pieces(response)
            if not self._reply.open and self._cursor == len(self._reply.pieces):
                break
            if not await self._reply.more(self._cursor, self._config.keepalive_s):
                await response.write(self._reply.keepalive)
        if self._reply.error is None:
            self._reply.delivered()
        else:
            await self._fail(response, self._reply.error)
        return response

    async def _until_worth_headers(self) -> None:
        """Until the turn is prepared and has its first token, or has had its time for it. Raises: AdapterError."""
        reply = self._reply
        while reply.state is ReplyState.PREPARING:
            await reply.more(len(reply.pieces))
        await reply.more(START_PIECES, self._config.first_event_wait_s)
        if reply.error is not None and len(reply.pieces) <= START_PIECES:
            raise reply.error

    async def _write_pieces(self, response: web.StreamResponse) -> None:
        """Everything that came since the last write, in one: a slow reader gets fewer, larger writes."""
        pieces = self._reply.pieces[self._cursor :]
        self._cursor += len(pieces)
        if pieces:
            await response.write(b"".join(pieces))

    async def _fail(self, response: web.StreamResponse, error: AdapterError) -> None:
        event(
            logger, logging.WARNING, "stream_failed", path=self._request.path, status=error.status, message=str(error)
        )
        response.force_close()
        await response.write(self._reply.error_piece())
        if self._request.transport is not None:
            self._request.transport.close()
