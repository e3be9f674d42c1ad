"""The console's chat: ``POST /api/console/chat``. The console sends what is new, the session's main line is put before it.

A turn runs on when its page is closed; ``POST /v1/sessions/SID/interrupt`` stops it. While one runs in a session, the same input
again joins it, as any input does in QwenPaw; other input is refused with 409, for joining would lose it. With ``reconnect: true`` a
page that was loaded anew is given the running reply from its beginning, or one whose end nobody was given; where there is none,
the stream ends at once, and the page has all there is from the session's history.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from adapter.errors import BadRequest, Conflict
from adapter.http.bodies import read_json_object
from adapter.http.failures import Handler
from adapter.http.session_name import known_session, load_named, session_of
from adapter.http.state import PROTOCOL, STATE
from adapter.http.turns import answer, start_reply
from adapter.protocols.base import WireProtocol
from adapter.protocols.console import ConsoleChat
from adapter.protocols.console_request import wants_reply_again
from adapter.reply import LiveReply, ReplyState
from adapter.sessions import Session
from adapter.trajectory import Node
from adapter.trajectory.mainline import main_line
from adapter.types import ChatRequest


def add_routes(router: web.UrlDispatcher, prefix: str) -> None:
    router.add_post(f"{prefix}/api/console/chat", _handler(ConsoleChat()))


def _handler(protocol: WireProtocol) -> Handler:
    """The route on which the console asks for a reply, or for one again."""

    async def handle(request: web.Request) -> web.StreamResponse:
        request[PROTOCOL] = protocol
        body = await read_json_object(request)
        await load_named(request, protocol, body)
        if wants_reply_again(body):
            return await _reconnect(request, protocol, body)
        chat = protocol.parse_request(body)
        reply = _running(request, protocol, body) or _start(request, protocol, body, chat)
        return await answer(request, reply, stream=chat.stream)

    return handle


async def _reconnect(request: web.Request, protocol: WireProtocol, body: Mapping[str, Any]) -> web.StreamResponse:
    session = known_session(request, request.app[STATE].sessions, protocol, body)
    reply = None if session is None else session.replies.latest(protocol.name)
    if reply is None or not (reply.open or reply.state is ReplyState.COMMITTED):
        return web.Response(body=b"", content_type="text/event-stream", headers={"Cache-Control": "no-cache"})
    return await answer(request, reply, stream=True)


def _running(request: web.Request, protocol: WireProtocol, body: Mapping[str, Any]) -> LiveReply | None:
    """The reply to the same input, if it runs. Raises: Conflict, if a reply to other input runs."""
    session = known_session(request, request.app[STATE].sessions, protocol, body)
    if session is None:
        return None
    for reply in session.replies.running():
        if reply.route == protocol.name:
            if reply.body == body:
                return reply
            message = "a reply to other input is running: follow it with reconnect, or interrupt the session"
            raise Conflict(message, field="input")
    return None


def _start(request: web.Request, protocol: WireProtocol, body: Mapping[str, Any], chat: ChatRequest) -> LiveReply:
    """Raises: AdapterError."""
    state = request.app[STATE]
    state.services.models.find(chat.model)  # before anything is opened for it
    session = session_of(request, state.sessions, protocol, body)
    saved = main_line(session.trajectory.chains())
    _check_results(request, session, saved, chat)
    messages = (*(node.message for node in saved if node.message is not None), *chat.messages)
    reply = LiveReply(protocol.name, body, background=True, keep_bytes=state.services.config.replay_reply_bytes)
    start_reply(request, session, protocol, dataclasses.replace(chat, messages=messages, handles=()), reply)
    return reply


def _check_results(request: web.Request, session: Session, saved: Sequence[Node], chat: ChatRequest) -> None:
    """Results are of calls in the last reply. Raises: BadRequest."""
    given = [call_id for handles in chat.handles for call_id in handles]
    if not given:
        return
    ids = request.app[STATE].services.ids
    last = saved[-1] if saved else None
    calls = (last.message or {}).get("tool_calls", ()) if last is not None else ()
    number = last.generation.number if last is not None and last.generation is not None else None
    if len(given) > len(calls) or any(ids.turn_of(session.sid, call_id) != number for call_id in given):
        raise BadRequest("a call_id is not one of the last reply's, or stands there twice", field="input")
