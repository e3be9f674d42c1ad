"""The served model and its aliases, in one shape that Anthropic's, OpenAI's and Google's clients read.

Google's SDK for Python asks for the list under ``/v1``, others of its clients under ``/v1beta``.
"""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from adapter.errors import NotFound
from adapter.http.state import STATE


async def list_models(request: web.Request) -> web.StreamResponse:
    """``GET /v1/models``; all of them on one page."""
    models = [_model(request, name) for name in _names(request)]
    body = {
        "object": "list",
        "data": models,
        "has_more": False,
        "first_id": models[0]["id"],
        "last_id": models[-1]["id"],
        "models": models,
    }
    return web.Response(body=orjson.dumps(body), content_type="application/json")


async def show_model(request: web.Request) -> web.StreamResponse:
    """``GET /v1/models/NAME``."""
    name, names = request.match_info["model"], _names(request)
    if name not in names:
        raise NotFound(f"there is no model {name!r}; served: {', '.join(names)}", field="model")
    return web.Response(body=orjson.dumps(_model(request, name)), content_type="application/json")


def _names(request: web.Request) -> list[str]:
    config = request.app[STATE].services.config
    return [config.served_model_name, *(alias for alias in config.model_alias if alias != "*")]


def _model(request: web.Request, name: str) -> dict[str, Any]:
    """OpenAI's and Anthropic's members, then Google's."""
    services = request.app[STATE].services
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "created": 0,
        "created_at": "1970-01-01T00:00:00Z",
        "display_name": name,
        "owned_by": "rollserve",
        "name": f"models/{name}",
        "baseModelId": name,
        "version": "1",
        "displayName": name,
        "inputTokenLimit": services.context_tokens,
        "outputTokenLimit": min(services.config.max_tokens, services.context_tokens),
        "supportedGenerationMethods": ["generateContent", "streamGenerateContent", "countTokens"],
    }
