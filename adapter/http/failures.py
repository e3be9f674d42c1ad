"""Every failure becomes the error body of the protocol that was spoken; nothing else leaves the server.

A client that went away is status 499 in the log (nginx's number); it gets no answer.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from adapter.errors import AdapterError, BodyTooLarge, NotFound, TooManyRequests, Unauthorized, Unavailable
from adapter.http.request_id import REQUEST_ID, new_request_id
from adapter.http.state import PROTOCOL
from adapter.logs import event

logger = logging.getLogger("rollserve.http")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class MethodNotAllowed(AdapterError):
    status = 405


class ServerFault(AdapterError):
    """A fault of our own. The log has the traceback; the client learns only that it happened."""

    status = 500


@web.middleware
async def failures_as_bodies(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The outermost layer of every request."""
    request[REQUEST_ID] = new_request_id()
    try:
        return await handler(request)
    except AdapterError as error:
        return _answer(request, error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _answer(request, _of_http(request, error))
    except (asyncio.CancelledError, ConnectionResetError):
        event(logger, logging.INFO, "client_gone", status=499, path=request.path, request_id=request[REQUEST_ID])
        # aiohttp takes a handler that was cancelled for one whose client left, and logs any other error as a fault.
        raise asyncio.CancelledError from None
    except Exception:
        logger.exception("fault", extra={"fields": {"path": request.path, "request_id": request[REQUEST_ID]}})
        return _answer(request, ServerFault("internal error; the server's log has the details"))


def _of_http(request: web.Request, error: web.HTTPException) -> AdapterError:
    if error.status == 404:
        return NotFound(f"there is no {request.method} {request.path}")
    if error.status == 405:
        return MethodNotAllowed(f"{request.path} does not take {request.method}")
    if error.status == 413:
        return BodyTooLarge("the body is too large")
    fault = AdapterError(error.reason)
    fault.status = error.status
    return fault


def _answer(request: web.Request, error: AdapterError) -> web.Response:
    event(
        logger, logging.INFO, "refused", status=error.status, path=request.path, field=error.field,
        request_id=request[REQUEST_ID], message=str(error),
    )  # fmt: skip
    protocol = request.get(PROTOCOL)
    body = protocol.render_error(error) if protocol is not None else control_error(error)
    return web.Response(
        status=error.status, body=orjson.dumps(body), content_type="application/json", headers=_headers(error)
    )


def _headers(error: AdapterError) -> dict[str, str]:
    """RFC 9110, 11.6.1: a 401 says how to do better."""
    return {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthorized) else _retry_headers(error)


def _retry_headers(error: AdapterError) -> dict[str, str]:
    """When to come again, on every 429 and 503: Codex takes a 429 without it for final.

    For a limit that no waiting lifts the official SDKs are told that there is no use; who does not read that soon finds out.
    """
    after = error.retry_after if error.retry_after is not None else _RETRY_AFTER_S.get(error.status)
    headers = {} if after is None else {"Retry-After": str(math.ceil(after))}
    if isinstance(error, TooManyRequests) and error.retry_after is None:
        headers["x-should-retry"] = "false"
    return headers


_RETRY_AFTER_S = {TooManyRequests.status: 1, Unavailable.status: 10}
"""Where the error does not say: at once, since it is final; and so that a client's ten tries outlast an engine's restart."""


def control_error(error: AdapterError) -> dict[str, Any]:
    """The error body of the server's own routes."""
    return {"error": {"type": error.code, "message": str(error), "field": error.field}}
