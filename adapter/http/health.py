"""``/healthz``: this process serves. ``/readyz``: a turn would reach an engine, and be recorded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import orjson
from aiohttp import web

from adapter.http.auth import is_admin
from adapter.http.state import STATE
from adapter.served import ServedModel
from engine.errors import EngineError
from engine.pool import Pool


async def alive(request: web.Request) -> web.StreamResponse:
    return _json({"status": "ok"})


async def ready(request: web.Request) -> web.StreamResponse:
    """503 with the reason while the engine is not ready or turns cannot be recorded. Details are the operator's."""
    status, details = await _readiness(request)
    return _json(details if is_admin(request) else {"status": details["status"]}, status)


async def _readiness(request: web.Request) -> tuple[int, dict[str, Any]]:
    services, sessions = request.app[STATE].services, request.app[STATE].sessions
    if sessions.recorder.failure is not None:
        return 503, {"status": "unavailable", "reason": f"the journal: {sessions.recorder.failure}"}
    for model in services.models:
        try:
            await model.engine.check_ready()
        except EngineError as error:
            whose = f"{model.name}: " if len(services.models) > 1 else ""
            return 503, {"status": "unavailable", "reason": f"{whose}{error}"}
    model = services.models.default
    info = model.engine.info
    return 200, {
        "status": "ready",
        "engine_model": info.model,
        "log_prob_mode": info.log_prob_mode,
        "weight_version": info.weight_version,
        "max_context_tokens": model.context_tokens,
        "endpoints": _endpoints(services.models),
    }


def _endpoints(models: Iterable[ServedModel]) -> list[dict[str, Any]]:
    """Those of every engine; what is wrong with one is the operator's business, as long as another is ready."""
    pools = {id(model.engine): model.engine for model in models if isinstance(model.engine, Pool)}
    return [asdict(state) for pool in pools.values() for state in pool.endpoints()]


def _json(document: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(document), content_type="application/json")
