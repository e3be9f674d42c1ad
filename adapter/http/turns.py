"""The protocols' own routes: a turn, a token count, the list of models."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any

import orjson
from aiohttp import web

from adapter.http.bodies import read_json_object
from adapter.http.failures import Handler
from adapter.http.session_name import session_of
from adapter.http.state import PROTOCOL, STATE
from adapter.http.stream import StreamedReply, whole_reply
from adapter.logs import event
from adapter.protocols.base import WireProtocol
from adapter.turn import Turn, check_model, count_prompt_tokens, prepare_turn
from adapter.types import ChatRequest

logger = logging.getLogger("rollserve.turn")


def turn_handler(protocol: WireProtocol) -> Handler:
    """The route on which ``protocol`` asks for a reply."""

    async def handle(request: web.Request) -> web.StreamResponse:
        request[PROTOCOL] = protocol
        body = await read_json_object(request)
        chat = _streamed_by_header(request, body, protocol.parse_request(body))
        state = request.app[STATE]
        check_model(state.services.config, chat)
        session = session_of(request, state.sessions, protocol, body)
        with session.turn_in_flight(state.services.config.max_turns) as number:
            turn = await prepare_turn(state.services, session, number, protocol, chat)
            response = await _reply(request, turn)
            _log_turn(turn)
            return response

    return handle


async def _reply(request: web.Request, turn: Turn) -> web.StreamResponse:
    services = request.app[STATE].services
    model = turn.request.model or services.config.served_model_name
    reply_id = turn.protocol.new_reply_id(services.ids)
    created = int(time.time())
    if not turn.request.stream:
        return await whole_reply(turn, model=model, reply_id=reply_id, ids=services.ids, created=created)
    frames = turn.protocol.stream(turn.request, reply_id=reply_id, model=model, ids=services.ids, created=created)
    config = services.config
    reply = StreamedReply(
        request, turn, frames, first_event_wait_s=config.first_event_wait_s, keepalive_s=config.keepalive_s
    )
    return await reply.run()


def _streamed_by_header(request: web.Request, body: dict[str, Any], chat: ChatRequest) -> ChatRequest:
    """A client may ask for a stream by its Accept header alone, as the seed's adapter allows."""
    if "stream" not in body and "text/event-stream" in request.headers.get("Accept", ""):
        return dataclasses.replace(chat, stream=True)
    return chat


def _log_turn(turn: Turn) -> None:
    outcome = turn.outcome
    if outcome is None:
        return  # a stream that failed; that was logged
    event(
        logger, logging.INFO, "turn", sid=turn.session.sid, turn=turn.number, protocol=turn.protocol.name,
        input_tokens=outcome.usage.input_tokens, cached_tokens=outcome.usage.cached_tokens,
        output_tokens=outcome.usage.output_tokens, finish_reason=str(outcome.reason),
    )  # fmt: skip


def count_tokens_handler(protocol: WireProtocol) -> Handler:
    """``/v1/messages/count_tokens``: the exact length of the prompt, rendered as a turn would be."""

    async def handle(request: web.Request) -> web.StreamResponse:
        request[PROTOCOL] = protocol
        body = await read_json_object(request)
        count = await count_prompt_tokens(request.app[STATE].services, protocol.parse_request(body))
        return web.Response(body=orjson.dumps({"input_tokens": count}), content_type="application/json")

    return handle


async def list_models(request: web.Request) -> web.StreamResponse:
    """``GET /v1/models``, in a shape that both Anthropic's and OpenAI's clients read."""
    config = request.app[STATE].services.config
    names = [config.served_model_name, *(alias for alias in config.model_alias if alias != "*")]
    models = [
        {
            "id": name,
            "object": "model",
            "type": "model",
            "created": 0,
            "created_at": "1970-01-01T00:00:00Z",
            "display_name": name,
            "owned_by": "rollserve",
        }
        for name in names
    ]
    body = {"object": "list", "data": models, "has_more": False, "first_id": names[0], "last_id": names[-1]}
    return web.Response(body=orjson.dumps(body), content_type="application/json")
