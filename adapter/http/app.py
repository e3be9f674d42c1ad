"""The routes. Every protocol's routes exist twice: plain, and under ``/s/SID`` for a client that names its session by URL.

POST /v1/messages, /v1/messages/count_tokens     Anthropic Messages
POST /v1/chat/completions                        OpenAI Chat Completions
POST /v1/responses                               OpenAI Responses; GET, DELETE .../ID and what is below it: ``http.responses``
POST /v1beta/models/NAME:generateContent         Gemini; what else it has: ``http.gemini``
POST /api/console/chat                           the console: new input only, the session's history goes before it
GET  /v1/models
POST /v1/sessions                                open; GET lists
GET  /v1/sessions/SID, /v1/sessions/SID/explain  look; DELETE forgets
GET  /v1/sessions/SID/samples                    what finish would give now; POST /v1/sessions/SID/finish
GET  /v1/sessions/SID/events, .../replies/NUMBER/events     reading along: ``http.events``
GET  /v1/sessions/SID/history                    its conversation; POST /v1/sessions/SID/interrupt stops its turns
GET  /v1/engine, POST /v1/engine/pause, .../resume, .../weights      the engine: ``http.engine_control``
GET  /healthz   GET /readyz   GET /metrics   GET /openapi.json
"""

from __future__ import annotations

from aiohttp import web

from adapter.http import (
    console,
    control,
    conversation,
    engine_control,
    events,
    gemini,
    health,
    models,
    openapi,
    responses,
    turns,
)
from adapter.http.failures import failures_as_bodies
from adapter.http.metrics import add_metrics, counted
from adapter.http.request_id import send_request_id
from adapter.http.session_name import SID
from adapter.http.state import STATE, ServerState
from adapter.protocols.anthropic import AnthropicMessages
from adapter.protocols.openai_chat import OpenAIChat


def build_app(state: ServerState) -> web.Application:
    """The server as an application that is not yet listening."""
    app = web.Application(
        middlewares=[counted, failures_as_bodies], client_max_size=state.services.config.max_body_bytes
    )
    app[STATE] = state
    app.on_response_prepare.append(send_request_id)
    anthropic, chat = AnthropicMessages(), OpenAIChat()
    for prefix in ("", f"/s/{SID}"):
        app.router.add_post(f"{prefix}/v1/messages", turns.turn_handler(anthropic))
        app.router.add_post(f"{prefix}/v1/messages/count_tokens", turns.count_tokens_handler(anthropic))
        app.router.add_post(f"{prefix}/v1/chat/completions", turns.turn_handler(chat))
        responses.add_routes(app.router, prefix)
        gemini.add_routes(app.router, prefix)
        console.add_routes(app.router, prefix)
        app.router.add_get(f"{prefix}/v1/models", models.list_models)
        app.router.add_get(f"{prefix}/v1/models/{{model}}", models.show_model)
    app.router.add_post("/v1/sessions", control.open_session)
    app.router.add_get("/v1/sessions", control.list_sessions)
    app.router.add_get(f"/v1/sessions/{SID}", control.show_session)
    app.router.add_get(f"/v1/sessions/{SID}/explain", control.explain_session)
    app.router.add_get(f"/v1/sessions/{SID}/samples", control.preview_samples)
    app.router.add_post(f"/v1/sessions/{SID}/finish", control.finish_session)
    events.add_routes(app.router)
    conversation.add_routes(app.router)
    app.router.add_delete(f"/v1/sessions/{SID}", control.drop_session)
    engine_control.add_routes(app.router)
    app.router.add_get("/healthz", health.alive)
    app.router.add_get("/readyz", health.ready)
    add_metrics(app)
    openapi.add_routes(app.router)
    return app
