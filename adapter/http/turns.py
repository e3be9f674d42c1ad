"""The protocols' own routes: a turn, a token count."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web

from adapter.http.bodies import read_json_object
from adapter.http.choices import ChoicesMaker
from adapter.http.failures import Handler
from adapter.http.incoming import Incoming, read_incoming
from adapter.http.making import ReplyMaker
from adapter.http.session_name import known_session, load_named, session_of
from adapter.http.state import PROTOCOL, STATE
from adapter.http.stream import SERVER_SENT_EVENTS, EventStream, StreamStyle, write_whole
from adapter.labels import label_request
from adapter.metrics import Retry
from adapter.preparing import count_prompt_tokens
from adapter.protocols.base import WireProtocol
from adapter.reply import LiveReply
from adapter.sessions import Session
from adapter.types import ChatRequest

Amend = Callable[[web.Request, dict[str, Any]], dict[str, Any]]
"""Completes a body with what its protocol says elsewhere: in the path, or in an earlier reply. Raises: AdapterError."""


def _as_it_is(request: web.Request, body: dict[str, Any]) -> dict[str, Any]:
    return body


def turn_handler(protocol: WireProtocol, amend: Amend = _as_it_is, style: StreamStyle = SERVER_SENT_EVENTS) -> Handler:
    """The route on which ``protocol`` asks for a reply."""

    async def handle(request: web.Request) -> web.StreamResponse:
        request[PROTOCOL] = protocol
        if amend is _as_it_is:
            incoming = await read_incoming(request, protocol)
        else:
            body = amend(request, await read_json_object(request))
            incoming = Incoming(body, protocol.parse_request(body))
        await load_named(request, protocol, incoming.body)
        asked = ask(request, protocol, incoming)
        return await answer(request, asked.reply, stream=asked.chat.stream, style=style)

    return handle


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """A request and the reply that it is given. ``maker`` is None where that reply was there before."""

    chat: ChatRequest
    session: Session
    reply: LiveReply
    maker: ReplyMaker | None


def ask(request: web.Request, protocol: WireProtocol, incoming: Incoming, *, background: bool = False) -> Asked:
    """Find the reply to a request, or start one; nothing of that has happened yet when this returns. Raises: AdapterError."""
    body = incoming.body
    chat = _streamed_by_header(request, body, incoming.chat)
    state = request.app[STATE]
    state.services.models.find(chat.model)  # before anything is opened for it
    session = session_of(request, state.sessions, protocol, body)
    key = request.headers.get("Idempotency-Key")
    incoming.remember(session, protocol)
    reply = session.replies.find(protocol.name, body, key, is_retry=_is_retry(request), asked=incoming.asked)
    if reply is not None:
        state.services.watching.metrics.retried(Retry.JOINED if reply.open else Retry.REPLAYED)
        return Asked(chat, session, reply, None)
    keep_bytes = state.services.config.replay_reply_bytes
    reply = LiveReply(protocol.name, body, key, background=background, keep_bytes=keep_bytes, digest=incoming.asked)
    return Asked(chat, session, reply, start_reply(request, session, protocol, chat, reply))


def start_reply(
    request: web.Request, session: Session, protocol: WireProtocol, chat: ChatRequest, reply: LiveReply
) -> ReplyMaker:
    """Let ``reply`` be made, and be found again in its session."""
    make = ChoicesMaker if chat.n > 1 or chat.log_probs else ReplyMaker
    label = label_request(request.headers, chat)
    maker = make(request.app[STATE].services, session, protocol, chat, label, request.headers)
    reply.wire_id = maker.reply_id
    session.replies.add(reply)
    reply.start(maker.make)
    return maker


async def answer(
    request: web.Request, reply: LiveReply, *, stream: bool, style: StreamStyle = SERVER_SENT_EVENTS
) -> web.StreamResponse:
    """Give a client its reply from the beginning, and keep the reply alive meanwhile. Raises: AdapterError."""
    with reply.reader() as reader:
        if not stream:
            return await write_whole(reply, reader)
        return await EventStream(request, reply, reader, request.app[STATE].services.config, style).run()


def _streamed_by_header(request: web.Request, body: dict[str, Any], chat: ChatRequest) -> ChatRequest:
    """A client may ask for a stream by its Accept header alone, as the seed's adapter allows."""
    if "stream" not in body and "text/event-stream" in request.headers.get("Accept", ""):
        return dataclasses.replace(chat, stream=True)
    return chat


def _is_retry(request: web.Request) -> bool:
    """SDKs count their retries; a first request says 0."""
    return request.headers.get("x-stainless-retry-count", "0") not in ("", "0")


def count_tokens_handler(protocol: WireProtocol, amend: Amend = _as_it_is, member: str = "input_tokens") -> Handler:
    """``/v1/messages/count_tokens``: the exact length of the prompt that a turn would have, as ``member``. Opens no session."""

    async def handle(request: web.Request) -> web.StreamResponse:
        request[PROTOCOL] = protocol
        body = amend(request, await read_json_object(request))
        state = request.app[STATE]
        await load_named(request, protocol, body)
        session = known_session(request, state.sessions, protocol, body)
        count = await count_prompt_tokens(state.services, session, protocol.parse_request(body))
        return web.Response(body=orjson.dumps({member: count}), content_type="application/json")

    return handle
