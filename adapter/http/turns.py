"""The protocols' own routes: a turn, a token count, the list of models."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import orjson
from aiohttp import web

from adapter.errors import AdapterError, NotFound
from adapter.http.bodies import read_json_object
from adapter.http.failures import Handler, ServerFault
from adapter.http.session_name import known_session, session_of
from adapter.http.state import PROTOCOL, STATE
from adapter.http.stream import EventStream, write_whole
from adapter.labels import label_request
from adapter.logs import event
from adapter.protocols.base import WireProtocol
from adapter.protocols.common import dump_json
from adapter.reply import LiveReply
from adapter.sessions import Session
from adapter.turn import Turn, TurnServices, check_model, count_prompt_tokens, prepare_turn
from adapter.types import ChatRequest, Label

logger = logging.getLogger("rollserve.turn")


Amend = Callable[[web.Request, dict[str, Any]], dict[str, Any]]
"""Completes a body with what its protocol says elsewhere: in the path, or in an earlier reply. Raises: AdapterError."""


def turn_handler(protocol: WireProtocol, amend: Amend = lambda request, body: body) -> Handler:
    """The route on which ``protocol`` asks for a reply."""

    async def handle(request: web.Request) -> web.StreamResponse:
        request[PROTOCOL] = protocol
        body = amend(request, await read_json_object(request))
        chat = _streamed_by_header(request, body, protocol.parse_request(body))
        state = request.app[STATE]
        check_model(state.services.config, chat)
        session = session_of(request, state.sessions, protocol, body)
        key = request.headers.get("Idempotency-Key")
        reply = session.replies.find(protocol.name, body, key, is_retry=_is_retry(request))
        if reply is None:
            reply = LiveReply(protocol.name, body, key)
            session.replies.add(reply)
            label = label_request(request.headers, chat)
            reply.start(_ReplyMaker(state.services, session, protocol, chat, label).make)
        with reply.reader():
            if not chat.stream:
                return await write_whole(reply)
            return await EventStream(request, reply, state.services.config).run()

    return handle


class _ReplyMaker:
    """Runs one turn and appends what goes on the wire to its reply."""

    def __init__(
        self, services: TurnServices, session: Session, protocol: WireProtocol, chat: ChatRequest, label: Label
    ) -> None:
        self._services = services
        self._session = session
        self._protocol = protocol
        self._chat = chat
        self._label = label
        self._model = chat.model or services.config.served_model_name
        self._reply_id = protocol.new_reply_id(services.ids)
        self._created = int(time.time())

    async def make(self, reply: LiveReply) -> None:
        """The work of the reply's task. Raises: AdapterError."""
        try:
            with self._session.turn_in_flight(self._services.config.max_turns) as number:
                turn = await prepare_turn(self._services, self._session, number, self._chat, self._label)
                await (self._stream(turn, reply) if self._chat.stream else self._whole(turn, reply))
                _log_turn(self._protocol.name, turn)
        except AdapterError:
            raise
        except Exception as error:
            logger.exception("fault", extra={"fields": {"sid": self._session.sid}})
            raise ServerFault("internal error; the server's log has the details") from error

    async def _stream(self, turn: Turn, reply: LiveReply) -> None:
        frames = self._protocol.stream(
            self._chat, reply_id=self._reply_id, model=self._model, ids=turn.ids, created=self._created
        )
        reply.begin(_debug_headers(turn), keepalive=frames.keepalive(), render_error=frames.error)
        reply.append(frames.start(int(turn.prompt.ids.size)))
        async with aclosing(turn.events()) as batches:
            async for batch in batches:
                outcome = turn.outcome
                if outcome is None:
                    reply.append(frames.events(batch))
                else:
                    reply.commit(frames.events(batch) + frames.finish(outcome.parsed, outcome.reason, outcome.usage))

    async def _whole(self, turn: Turn, reply: LiveReply) -> None:
        reply.begin(_debug_headers(turn))
        async with aclosing(turn.events()) as batches:
            async for _ in batches:
                pass
        outcome = turn.outcome
        assert outcome is not None
        made = self._protocol.reply(outcome.parsed, outcome.reason, turn.ids)
        body = self._protocol.render_body(
            made, reply_id=self._reply_id, model=self._model, usage=outcome.usage, created=self._created
        )
        reply.commit(dump_json(body))


def _streamed_by_header(request: web.Request, body: dict[str, Any], chat: ChatRequest) -> ChatRequest:
    """A client may ask for a stream by its Accept header alone, as the seed's adapter allows."""
    if "stream" not in body and "text/event-stream" in request.headers.get("Accept", ""):
        return dataclasses.replace(chat, stream=True)
    return chat


def _is_retry(request: web.Request) -> bool:
    """SDKs count their retries; a first request says 0."""
    return request.headers.get("x-stainless-retry-count", "0") not in ("", "0")


def _debug_headers(turn: Turn) -> dict[str, str]:
    """Which session and turn this is, how its history was recognised, what pinned values replaced, which fields had no effect."""
    headers = {
        "x-rollserve-session": quote(turn.session.sid),
        "x-rollserve-turn": str(turn.number),
        "x-rollserve-match": turn.prompt.plan.reason,
    }
    if turn.sampling.overridden:
        headers["x-rollserve-pinned"] = ",".join(turn.sampling.overridden)
    if turn.request.unused_fields:
        headers["x-rollserve-unused-fields"] = quote(",".join(turn.request.unused_fields), safe=",._-[]")
    return headers


def _log_turn(protocol: str, turn: Turn) -> None:
    outcome = turn.outcome
    assert outcome is not None
    event(
        logger, logging.INFO, "turn", sid=turn.session.sid, turn=turn.number, protocol=protocol,
        match=str(turn.prompt.plan.reason), input_tokens=outcome.usage.input_tokens,
        cached_tokens=outcome.usage.cached_tokens, output_tokens=outcome.usage.output_tokens,
        finish_reason=str(outcome.reason),
    )  # fmt: skip


def count_tokens_handler(protocol: WireProtocol) -> Handler:
    """``/v1/messages/count_tokens``: the exact length of the prompt that a turn would have. Opens no session."""

    async def handle(request: web.Request) -> web.StreamResponse:
        request[PROTOCOL] = protocol
        body = await read_json_object(request)
        state = request.app[STATE]
        session = known_session(request, state.sessions, protocol, body)
        count = await count_prompt_tokens(state.services, session, protocol.parse_request(body))
        return web.Response(body=orjson.dumps({"input_tokens": count}), content_type="application/json")

    return handle


async def list_models(request: web.Request) -> web.StreamResponse:
    """``GET /v1/models``, in a shape that both Anthropic's and OpenAI's clients read."""
    names = _served_names(request)
    body = {
        "object": "list",
        "data": [_model(name) for name in names],
        "has_more": False,
        "first_id": names[0],
        "last_id": names[-1],
    }
    return web.Response(body=orjson.dumps(body), content_type="application/json")


async def show_model(request: web.Request) -> web.StreamResponse:
    """``GET /v1/models/NAME``."""
    name, names = request.match_info["model"], _served_names(request)
    if name not in names:
        raise NotFound(f"there is no model {name!r}; served: {', '.join(names)}", field="model")
    return web.Response(body=orjson.dumps(_model(name)), content_type="application/json")


def _served_names(request: web.Request) -> list[str]:
    config = request.app[STATE].services.config
    return [config.served_model_name, *(alias for alias in config.model_alias if alias != "*")]


def _model(name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "created": 0,
        "created_at": "1970-01-01T00:00:00Z",
        "display_name": name,
        "owned_by": "rollserve",
    }
