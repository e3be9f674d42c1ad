"""Which session a request belongs to.

In this order: the URL (``/s/SID/...``), the CLI's own header, Bearer, the key (``x-api-key``, ``x-goog-api-key``, ``?key=``), the
body, the id of the stored response that the request goes back to, else ``default``. Only the URL must name a session that exists;
any other name opens one unless ``--explicit-sessions`` is set, but for an id: that opens none. gemini-cli and qwen send no header
of their own: their sessions are told apart by the URL or by the key.

With access keys on, a key is never a name: a session's key stands for its session, behind the URL and before all others, and the
admin key for none (``http.auth``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from adapter.http.auth import KEY_SESSION, credentials
from adapter.http.state import STATE
from adapter.protocols.base import WireProtocol
from adapter.sessions import Session, Sessions

DEFAULT_SESSION = "default"

REFERRED_SESSION = web.RequestKey("referred_session", str)
"""Of what the request goes back to. Who names another session does not find it there."""

SID = "{sid:[^/]+}"
"""A session's name in a route. Clients' own names may have braces in them, which aiohttp takes in no part of a path by default."""

CLIENT_HEADERS = ("X-Claude-Code-Session-Id", "thread-id", "session-id", "x-session-affinity")
"""Claude Code; Codex (its agent, then its root session); opencode."""


def session_of(request: web.Request, sessions: Sessions, protocol: WireProtocol, body: Mapping[str, Any]) -> Session:
    """Raises: NotFound, Gone, BadRequest (a name that cannot be one)."""
    sid = _given_name(request)
    return sessions.find(sid) if sid is not None else sessions.find_or_open(_own_name(request, protocol, body))


def session_at_hand(request: web.Request, sessions: Sessions) -> Session | None:
    """The session that the request names without its body, if that is in memory here."""
    sid = _given_name(request) or _header_name(request)
    return None if sid is None else sessions.at_hand(sid)


async def load_named(request: web.Request, protocol: WireProtocol, body: Mapping[str, Any]) -> None:
    """Have the session in memory that ``session_of`` will look for; one that the URL or the key names is by now (``http.auth``)."""
    if _given_name(request) is None:
        await request.app[STATE].sessions.load(_own_name(request, protocol, body))


def known_session(
    request: web.Request, sessions: Sessions, protocol: WireProtocol, body: Mapping[str, Any]
) -> Session | None:
    """The session if it is there; none is opened. Raises: NotFound and Gone, for a session in the URL, or of the key."""
    sid = _given_name(request)
    return sessions.find(sid) if sid is not None else sessions.known(_own_name(request, protocol, body))


def _given_name(request: web.Request) -> str | None:
    """Of a session that must be there."""
    return request.match_info.get("sid", request.get(KEY_SESSION))


def _own_name(request: web.Request, protocol: WireProtocol, body: Mapping[str, Any]) -> str:
    named = _header_name(request) or protocol.body_session(body)
    return named or request.get(REFERRED_SESSION, DEFAULT_SESSION)


def _header_name(request: web.Request) -> str | None:
    for header in CLIENT_HEADERS:
        if request.headers.get(header):
            return request.headers[header]
    return None if request.app[STATE].access.on else next(iter(credentials(request)), None)
