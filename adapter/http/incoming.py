"""Reading the request for a turn: what its session knows of it is not read again (``protocols.known``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiohttp import web

from adapter.http.bodies import json_object, read_body
from adapter.http.session_name import session_at_hand
from adapter.http.state import STATE
from adapter.protocols.base import GoesOn, WireProtocol
from adapter.protocols.history import CannotGoOn
from adapter.protocols.known import KnownBeginning, KnownBeginnings, beginning_of
from adapter.replies import digest
from adapter.sessions import Session
from adapter.types import ChatRequest


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request that was read. ``raw`` is empty where nothing of it is to be known later."""

    body: dict[str, Any]
    """Without the messages that are ``known``."""
    chat: ChatRequest
    asked: str | None = None
    """Its digest, where replies are found by that."""
    raw: bytes = b""
    known: KnownBeginning | None = None

    def remember(self, session: Session, protocol: WireProtocol) -> None:
        """Let the session's next request go on from this one."""
        checkpoint = self.chat.checkpoint
        if not self.raw or checkpoint is None or not isinstance(protocol, GoesOn):
            return
        found = beginning_of(self.raw, self.body[protocol.history], checkpoint, self.known)
        if found is not None:
            session.known.setdefault(protocol.name, KnownBeginnings()).add(found, self.known)


async def read_incoming(request: web.Request, protocol: WireProtocol) -> Incoming:
    """Raises: BodyTooLarge, UnsupportedEncoding, BadRequest."""
    raw = await read_body(request)
    if not isinstance(protocol, GoesOn):
        body = json_object(raw)
        return Incoming(body, protocol.parse_request(body))
    return _read_on(request, protocol, raw) or _read_whole(protocol, raw)


def _read_on(request: web.Request, protocol: GoesOn, raw: bytes) -> Incoming | None:
    session = session_at_hand(request, request.app[STATE].sessions)
    beginnings = None if session is None else session.known.get(protocol.name)
    known = None if beginnings is None else beginnings.find(raw)
    body = None if known is None else known.rest(raw, protocol.history)
    if known is None or body is None:
        return None
    try:
        chat = protocol.parse_rest(body, known.checkpoint)
    except CannotGoOn:
        return None
    return Incoming(body, chat, digest(body, protocol.history, known), raw, known)


def _read_whole(protocol: GoesOn, raw: bytes) -> Incoming:
    body = json_object(raw)
    return Incoming(body, protocol.parse_rest(body, None), digest(body), raw)
