"""Request bodies: JSON objects, bounded in size, encoded or not."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from aiohttp import web

from adapter.errors import BadRequest, BodyTooLarge
from adapter.http.encodings import decoded
from adapter.http.state import STATE


async def read_json_object(request: web.Request, *, optional: bool = False) -> dict[str, Any]:
    """The body as a JSON object; an empty one where ``optional``. Raises: BodyTooLarge, UnsupportedEncoding, BadRequest."""
    raw = await read_body(request)
    return {} if optional and not raw.strip() else json_object(raw)


async def read_body(request: web.Request) -> bytes:
    """Decoded, if it came encoded. Raises: BodyTooLarge, UnsupportedEncoding, BadRequest."""
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise BodyTooLarge("the body is larger than this server takes (--max-body-bytes)") from error
    except web.RequestPayloadError as error:
        raise BadRequest("the body cannot be read: its framing is broken", field="body") from error
    encodings = request.headers.get("Content-Encoding")
    if encodings:
        limit = request.app[STATE].services.config.max_body_bytes
        raw = await asyncio.to_thread(decoded, raw, encodings, limit)
    return raw


def json_object(raw: bytes) -> dict[str, Any]:
    """Raises: BadRequest."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {error}", field="body") from error
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object", field="body")
    return body
