"""Who may do what, once access keys are on; without an admin key everybody may do everything.

    /healthz, /readyz, /openapi.json      open to all; what /readyz says beside yes or no takes the admin key
    /metrics                   the admin key, unless ``--metrics-public``
    the protocols' routes      the admin key, or the key of the session that the request belongs to
    reading along, history, interrupt     the same
    everything else            the admin key

A key comes as Bearer, ``x-api-key``, ``x-goog-api-key`` or ``?key=``. A session's key names its session wherever the URL does not;
what the URL names and the key is not of does not exist for its holder. All of it is looked at before the body is read. A session
of another worker is its owner's to judge: the request is passed on with its keys.
"""

from __future__ import annotations

from enum import StrEnum

from aiohttp import web

from adapter.access import named_by
from adapter.errors import Forbidden, NotFound, Unauthorized
from adapter.http.failures import Handler
from adapter.http.speaking import protocol_of
from adapter.http.state import PROTOCOL, STATE

OPEN = frozenset({"/healthz", "/readyz", "/openapi.json"})
METRICS = "/metrics"

OF_ONE_SESSION = frozenset(
    {
        "/v1/sessions/{sid}/events",
        "/v1/sessions/{sid}/replies/{reply}/events",
        "/v1/sessions/{sid}/history",
        "/v1/sessions/{sid}/interrupt",
    }
)
"""What a session's own client needs beside its protocol: a reply again, and what a console shows."""

_MODELS = ("/v1/models", "/v1/models/{model}")
"""Of all protocols: which one is meant cannot be seen."""


class Role(StrEnum):
    """Whose key a route takes."""

    ADMIN = "admin"
    SESSION = "session"
    """That of the session that the request belongs to, or the admin key."""


KEY_SESSION = web.RequestKey("key_session", str)
"""The session whose key the request brought."""

ADMIN = web.RequestKey("admin", bool)
"""Set where the request brought the admin key."""


@web.middleware
async def access(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The innermost layer of every request: what it raises is answered as any handler's errors."""
    if request.app[STATE].access.on:
        _check(request)
    sid = request.match_info.get("sid", request.get(KEY_SESSION))
    if sid is not None:
        await request.app[STATE].sessions.load(sid)
    return await handler(request)


def role_needed(path: str) -> Role | None:
    """Once access keys are on. ``path`` as a route writes it, with names in braces; None is open to all."""
    if path in OPEN:
        return None
    of_session = protocol_of(path) is not None or path in OF_ONE_SESSION or path.endswith(_MODELS)
    return Role.SESSION if of_session else Role.ADMIN


def is_admin(request: web.Request) -> bool:
    """Whether the request may see and do everything."""
    return not request.app[STATE].access.on or request.get(ADMIN, False)


def credentials(request: web.Request) -> list[str]:
    """What may be keys, wherever a client of one of the protocols puts them."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    given = (
        token.strip() if scheme.lower() == "bearer" else "",
        request.headers.get("x-api-key"),
        request.headers.get("x-goog-api-key"),
        request.query.get("key"),
    )
    return [key for key in given if key]


def _check(request: web.Request) -> None:
    """Raises: Unauthorized, Forbidden, NotFound; OwnedElsewhere."""
    given = credentials(request)
    if any(map(request.app[STATE].access.is_admin, given)):
        request[ADMIN] = True
        return
    route = request.match_info.route.resource
    path = "" if route is None else route.canonical
    role = role_needed(path)
    if role is None or (path == METRICS and request.app[STATE].services.config.metrics_public):
        return
    protocol = protocol_of(path)
    if protocol is not None:
        request[PROTOCOL] = protocol
    sid = _keys_session(request, given)
    if role is Role.ADMIN:
        raise Forbidden("this takes the admin key")
    named = request.match_info.get("sid", sid)
    if named != sid:
        raise NotFound(f"there is no session {named!r} for this key", field="session")
    request[KEY_SESSION] = sid


def _keys_session(request: web.Request, given: list[str]) -> str:
    """The session that one of the keys is of. Raises: Unauthorized, OwnedElsewhere."""
    state = request.app[STATE]
    for key in given:
        sid = named_by(key)
        fingerprint = None if sid is None else state.sessions.key_fingerprint(sid)
        if sid is not None and fingerprint is not None and state.access.matches(key, fingerprint):
            return sid
    raise Unauthorized(
        "an access key is needed, and this is none that is known" if given else "an access key is needed"
    )
