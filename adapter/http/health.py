"""``/healthz``: this process serves. ``/readyz``: a turn would reach an engine."""

from __future__ import annotations

import orjson
from aiohttp import web

from adapter.http.state import STATE
from engine.errors import EngineError


async def alive(request: web.Request) -> web.StreamResponse:
    return web.Response(body=orjson.dumps({"status": "ok"}), content_type="application/json")


async def ready(request: web.Request) -> web.StreamResponse:
    """503 with the reason while the engine is not ready."""
    services = request.app[STATE].services
    try:
        await services.engine.check_ready()
    except EngineError as error:
        body = {"status": "unavailable", "reason": str(error)}
        return web.Response(status=503, body=orjson.dumps(body), content_type="application/json")
    info = services.engine.info
    body = {
        "status": "ready",
        "engine_model": info.model,
        "log_prob_mode": info.log_prob_mode,
        "weight_version": info.weight_version,
        "max_context_tokens": services.context_tokens,
    }
    return web.Response(body=orjson.dumps(body), content_type="application/json")
