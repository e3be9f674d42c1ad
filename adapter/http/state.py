"""What the handlers share, under typed keys of the application."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiohttp import web

from adapter.access import AccessKeys
from adapter.engine_control import EngineControl
from adapter.preparing import TurnServices
from adapter.protocols.base import WireProtocol
from adapter.sessions import Sessions


@dataclass(frozen=True, slots=True)
class ServerState:
    """The services of one running server."""

    services: TurnServices
    sessions: Sessions
    engine: EngineControl
    own_url: str | None = None
    """Where this worker alone is reached, if there are several; None is whatever the client used."""
    access: AccessKeys = field(default_factory=AccessKeys)


STATE = web.AppKey("state", ServerState)
COUNTED_ELSEWHERE = web.RequestKey("counted_elsewhere", bool)
"""Set where another worker counts the request."""
OF_A_PEER = web.RequestKey("of_a_peer", bool)
"""Set on what another worker asks, on its own behalf or passing a client's request on."""
PROTOCOL = web.RequestKey("protocol", WireProtocol)
"""The protocol of the request being served; errors are rendered in it."""
