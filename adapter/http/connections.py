"""Connections as this server has them: how much is sent ahead of a reader, and what is answered to what cannot be read as HTTP.

**Sent ahead.** A client on this machine is sent segments of 64 kB, for which the kernel takes up to 4 MB of a reply that nobody
reads: memory that no limit here counts, and a reader that has stalled unseen. ``UNSENT_BYTES`` bounds it; a reply's text is far
below what a connection could carry.

**Not HTTP.** It is answered in JSON, and logged without a word of it, since there may be a key in it. aiohttp would answer in plain
text that quotes the line it did not like, and log that line. Which protocol the client speaks is not known here; what it is given
is what the clients of all of them look for a message in. So is a request that expects what aiohttp does not know, which it would
answer in the same way, or with a fault where the header's bytes are no text. aiohttp's limits are left as they are: 8190 bytes for
the request line and for each header, 128 headers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

import orjson
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from adapter.errors import AdapterError, BadRequest
from adapter.http.failures import ServerFault, control_error
from adapter.http.request_id import HEADERS, new_request_id
from adapter.http.state import STATE
from adapter.logs import event
from adapter.metrics import OTHER, Metrics

logger = logging.getLogger("rollserve.http")

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

UNSENT_BYTES = 64 * 1024
"""That the kernel takes of a connection before it has sent them (tcp(7), TCP_NOTSENT_LOWAT), and one segment more."""


class HeadersTooLarge(AdapterError):
    """RFC 6585, 5."""

    status = 431


class UnknownExpectation(AdapterError):
    """RFC 9110, 10.1.1."""

    status = 417


class Runner(web.AppRunner):
    """Serves an application on ``Connection``."""

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        metrics = self.app[STATE].services.watching.metrics
        server = _Server(
            _refusing_expectations(made.request_handler, metrics),
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            loop=made._loop,
            **made._kwargs,
        )
        server.metrics = metrics
        return server


def _refusing_expectations(handler: Handler, metrics: Metrics) -> Handler:
    """``handler``, for requests that expect no more than to be told to go on."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Expect", "").lower() in ("", "100-continue"):
            return await handler(request)
        return _refusal(UnknownExpectation("only 100-continue can be expected"), metrics)

    return handle


class _Server(web.Server):
    metrics: Metrics

    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Connection(RequestHandler):
    __slots__ = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what no handler has answered; the connection is closed behind it."""
        assert isinstance(self._manager, _Server)
        response = _refusal(_error(status, exc), self._manager.metrics, exc)
        if request.writer.output_size > 0:
            raise ConnectionError("something else was answered already")
        return response


def _refusal(error: AdapterError, metrics: Metrics, cause: BaseException | None = None) -> web.Response:
    """Logged and counted. The connection is closed behind it."""
    request_id = new_request_id()
    if error.status >= 500:
        logger.error("fault", exc_info=cause, extra={"fields": {"request_id": request_id}})
    event(logger, logging.INFO, "refused", status=error.status, request_id=request_id, message=str(error))
    metrics.answered(OTHER, None, error.status)
    response = web.Response(
        status=error.status,
        body=orjson.dumps(control_error(error)),
        content_type="application/json",
        headers=dict.fromkeys(HEADERS, request_id),
    )
    response.force_close()
    return response


def _error(status: int, exc: BaseException | None) -> AdapterError:
    if status >= 500:
        return ServerFault("internal error; the server's log has the details")
    if isinstance(exc, LineTooLong):
        return HeadersTooLarge(f"the request line and each header may have {exc.args[1]} bytes")
    return BadRequest("this is not HTTP/1.1 as it should be")
