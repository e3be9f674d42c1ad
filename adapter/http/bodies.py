"""Request bodies: JSON objects, bounded in size."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from adapter.errors import BadRequest, BodyTooLarge


async def read_json_object(request: web.Request, *, optional: bool = False) -> dict[str, Any]:
    """The body as a JSON object; an empty one where ``optional``. Raises: BodyTooLarge, BadRequest."""
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise BodyTooLarge("the body is larger than this server takes (--max-body-bytes)") from error
    except web.RequestPayloadError as error:
        raise BadRequest(
            "the body cannot be read: its content encoding or its framing is broken", field="body"
        ) from error
    if optional and not raw.strip():
        return {}
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {error}", field="body") from error
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object", field="body")
    return body
