"""The served models, adapters and aliases, in one shape that Anthropic's, OpenAI's and Google's clients read.

Google's SDK for Python asks for the list under ``/v1``, others of its clients under ``/v1beta``.
"""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from adapter.http.state import STATE


async def list_models(request: web.Request) -> web.StreamResponse:
    """``GET /v1/models``; all of them on one page."""
    models = [_model(request, name) for name in request.app[STATE].services.models.names()]
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
    name = request.match_info["model"]
    return web.Response(body=orjson.dumps(_model(request, name)), content_type="application/json")


def _model(request: web.Request, name: str) -> dict[str, Any]:
    """OpenAI's and Anthropic's members, then Google's. Raises: NotFound."""
    services = request.app[STATE].services
    context_tokens = services.models.find(name).context_tokens
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
        "inputTokenLimit": context_tokens,
        "outputTokenLimit": min(services.config.max_tokens, context_tokens),
        "supportedGenerationMethods": ["generateContent", "streamGenerateContent", "countTokens"],
    }
