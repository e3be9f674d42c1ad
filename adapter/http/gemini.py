"""The routes of the Gemini API, under ``/v1beta`` and under ``/v1``.

POST models/NAME:generateContent
POST models/NAME:streamGenerateContent    ``?alt=sse``: server-sent events; without it one JSON array
POST models/NAME:countTokens
GET  models, models/NAME                  the same as of the other protocols: ``http.models``

**Errors in streams.** The SDKs know an error by its being bare JSON where an event is due (@google/genai 1.30 and 3.3,
``processStreamResponse``; google-genai 3.6, ``_api_client``), and gemini-cli then asks again. The stream is not cut off behind it,
as other protocols' are: @google/genai gives up what it has read but not yet handed on when a connection breaks. A bare error is
what no complete reply ends with.

The model's name and whether to stream stand in the path; they are put into the body for the protocol to read.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from adapter.buffer import BLANK_LINE
from adapter.errors import BadRequest
from adapter.http import models, turns
from adapter.http.failures import Handler
from adapter.http.state import PROTOCOL
from adapter.http.stream import StreamBody, StreamStyle
from adapter.protocols.gemini import Gemini

VERSIONS = ("v1beta", "v1")

NAME = "{model:(?s:.+)}"
"""Any name, slashes and line ends included: one that is unknown is a model that is unknown, not a route."""

_DATA = b"data: "
_ERROR = b'{"error":'
"""How the data of an error begins. A text that spells this has its quotes escaped."""


def add_routes(router: web.UrlDispatcher, prefix: str) -> None:
    """``prefix`` is empty, or ``/s/{sid}``."""
    gemini = Gemini()
    events = turns.turn_handler(gemini, _amend_streamed, StreamStyle(_BareErrors, cut_after_error=False))
    array = turns.turn_handler(
        gemini, _amend_streamed, StreamStyle(_JsonArray, "application/json", cut_after_error=False)
    )

    async def stream(request: web.Request) -> web.StreamResponse:
        request[PROTOCOL] = gemini
        alt = request.query.get("alt", "json")
        if alt not in ("sse", "json"):
            raise BadRequest("must be sse or json", field="alt")
        return await (events if alt == "sse" else array)(request)

    for version in VERSIONS:
        path = f"{prefix}/{version}/models/{NAME}"
        router.add_post(f"{path}:generateContent", turns.turn_handler(gemini, _amend_whole))
        router.add_post(f"{path}:streamGenerateContent", stream)
        router.add_post(f"{path}:countTokens", turns.count_tokens_handler(gemini, _amend_counted, "totalTokens"))
    router.add_get(f"{prefix}/v1beta/models", _in_shape(models.list_models))
    router.add_get(f"{prefix}/v1beta/models/{NAME}", _in_shape(models.show_model))


class _BareErrors(StreamBody):
    """Events, but for an error."""

    def feed(self, events: bytes) -> bytes:
        return events.replace(_DATA + _ERROR, _ERROR)


class _JsonArray(StreamBody):
    """An array of what the events hold; only that of a complete reply is closed."""

    def __init__(self) -> None:
        self._before = b"["

    def feed(self, events: bytes) -> bytes:
        items = b""
        for item in events.split(BLANK_LINE)[:-1]:
            items += self._before + item.removeprefix(_DATA) + b"\n"
            self._before = b","
        return items

    def finish(self) -> bytes:
        return b"]\n"


def _amend_whole(request: web.Request, body: dict[str, Any]) -> dict[str, Any]:
    return body | {"model": request.match_info["model"], "stream": False}


def _amend_streamed(request: web.Request, body: dict[str, Any]) -> dict[str, Any]:
    return body | {"model": request.match_info["model"], "stream": True}


def _amend_counted(request: web.Request, body: dict[str, Any]) -> dict[str, Any]:
    """What is to be counted are contents, or a whole request. Raises: BadRequest, for both or for something else."""
    for name in ("generateContentRequest", "generate_content_request"):
        whole = body.get(name)
        if whole is None:
            continue
        if not isinstance(whole, dict):
            raise BadRequest("must be an object", field=name)
        if "contents" in body:
            raise BadRequest(f"cannot stand beside {name}", field="contents")
        body = whole
    return _amend_whole(request, body)


def _in_shape(handler: Handler) -> Handler:
    """``handler``, with its errors in this protocol's shape."""

    async def handle(request: web.Request) -> web.StreamResponse:
        request[PROTOCOL] = Gemini()
        return await handler(request)

    return handle
