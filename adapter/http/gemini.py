"""The routes of the Gemini API, under ``/v1beta`` and under ``/v1``.

POST models/NAME:generateContent
POST models/NAME:streamGenerateContent    ``?alt=sse``: server-sent events; without it one JSON array
POST models/NAME:countTokens
GET  models, models/NAME                  the same as of the other protocols: ``http.models``

A stream that failed is not cut off behind its error, as other protocols' are: @google/genai gives up what it has read but not yet
handed on when a connection breaks, the error included. The bare error is what no complete reply ends with.

The model's name and whether to stream stand in the path; they are put into the body for the protocol to read.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from adapter.errors import BadRequest
from adapter.http import models, turns
from adapter.http.failures import Handler
from adapter.http.state import PROTOCOL
from adapter.http.stream import StreamStyle
from adapter.protocols.gemini import Gemini, GeminiArray

VERSIONS = ("v1beta", "v1")


def add_routes(router: web.UrlDispatcher, prefix: str) -> None:
    """``prefix`` is empty, or ``/s/{sid}``."""
    sse, array = Gemini(), GeminiArray()
    streamed_sse = turns.turn_handler(sse, _amend_streamed, StreamStyle(cut_after_error=False))
    streamed_array = turns.turn_handler(array, _amend_streamed, StreamStyle("application/json", cut_after_error=False))

    async def stream(request: web.Request) -> web.StreamResponse:
        request[PROTOCOL] = sse
        alt = request.query.get("alt", "json")
        if alt not in ("sse", "json"):
            raise BadRequest("must be sse or json", field="alt")
        return await (streamed_sse if alt == "sse" else streamed_array)(request)

    for version in VERSIONS:
        path = f"{prefix}/{version}/models/{{model:.+}}"
        router.add_post(f"{path}:generateContent", turns.turn_handler(sse, _amend_whole))
        router.add_post(f"{path}:streamGenerateContent", stream)
        router.add_post(f"{path}:countTokens", turns.count_tokens_handler(sse, _amend_counted, "totalTokens"))
    router.add_get(f"{prefix}/v1beta/models", _in_shape(models.list_models))
    router.add_get(f"{prefix}/v1beta/models/{{model:.+}}", _in_shape(models.show_model))


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
