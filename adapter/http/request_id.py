"""An id for each request: in the log, and in the response's headers under the names that the protocols use.

``x-request-id`` is OpenAI's, ``request-id`` Anthropic's; their SDKs put it into exceptions. It is also taken as evidence: Qwen Code
goes on after an error event in a stream only if the response had one (qwen-code, ``utils/retryErrorClassification.ts``).
"""

from __future__ import annotations

import secrets

from aiohttp import web

REQUEST_ID = web.RequestKey("request_id", str)
HEADERS = ("x-request-id", "request-id")


def new_request_id() -> str:
    return f"req_{secrets.token_hex(12)}"


async def send_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """For ``on_response_prepare``: whatever the answer is, it names its request."""
    issued = request.get(REQUEST_ID) or new_request_id()  # a request with a bad Expect header meets no middleware
    response.headers.update(dict.fromkeys(HEADERS, issued))
