"""An engine that serves HTTP, for gateways that pass requests on: it answers every Anthropic message at once with the same reply.

The other paths are what the gateway ``smg`` asks of a worker before it uses it (paths as in its repository, lightseekorg/smg).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
from aiohttp import web

from loadtest.agent import OUTPUT_TOKENS
from loadtest.naive import MOST_BODY, events_of

MODEL = "rollserve"
ASKED_FIRST = ("/health", "/health_generate", "/v1/models", "/models", "/get_model_info", "/model_info", "/server_info")


def stream_of(reply: str) -> bytes:
    """The streamed message as server-sent events. It says that the prompt has no tokens: they are not counted here."""
    start, *rest = events_of(reply, 0, OUTPUT_TOKENS)
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "content": [], **start["message"]}
    events = [{**start, "message": message}, *rest]
    return b"".join(b"event: %s\ndata: %s\n\n" % (event["type"].encode(), orjson.dumps(event)) for event in events)


async def described(_: web.Request) -> web.Response:
    return web.json_response(
        {"object": "list", "data": [{"id": MODEL, "object": "model"}], "model_path": MODEL, "served_model_name": MODEL}
    )


@asynccontextmanager
async def instant(reply: str) -> AsyncIterator[str]:
    """Its URL, while it listens."""
    stream = stream_of(reply)

    async def messages(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=stream, content_type="text/event-stream")

    app = web.Application(client_max_size=MOST_BODY)
    app.router.add_post("/v1/messages", messages)
    app.router.add_routes([web.get(path, described) for path in ASKED_FIRST])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
