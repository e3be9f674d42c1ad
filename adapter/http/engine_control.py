"""The operator's side of the engine: pause it, give it new weights, look at it.

    GET  /v1/engine           paused? which weights, which endpoints
    POST /v1/engine/pause     {"mode": "drain" | "cut", "deadline_s": 30, "lease_s": 300}
    POST /v1/engine/resume    {}
    POST /v1/engine/weights   {"version": N, "path": CHECKPOINT, "model": NAME, "mode": ..., "deadline_s": ...}

``drain`` lets what runs go on for ``deadline_s`` at most, and cuts the rest at a token; ``cut`` does so at once. What was cut goes
on afterwards, from the tokens that it has. All of it takes the admin key where access keys are on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from typing import Any

import orjson
from aiohttp import web

from adapter.engine_control import EngineControl, Update, UpdateRefused
from adapter.errors import BadRequest, NotFound
from adapter.holding import COORDINATOR
from adapter.http.bodies import read_json_object
from adapter.http.failures import control_error
from adapter.http.state import OF_A_PEER, STATE
from adapter.ownership import OwnedElsewhere
from engine.weights import Weights

DRAIN_S, LEASE_S = 30.0, 300.0
"""Where a request does not say."""
SHORTEST_LEASE_S, LONGEST_S = 1.0, 86_400.0
LARGEST_VERSION = 2**31 - 1
"""The contract's ``weight_version`` is INT32."""


class PauseMode(StrEnum):
    """What becomes of what runs."""

    DRAIN = "drain"
    """It may end, until the deadline."""
    CUT = "cut"
    """It is cut at once."""


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/v1/engine", show_engine)
    router.add_post("/v1/engine/pause", pause_engine)
    router.add_post("/v1/engine/resume", resume_engine)
    router.add_post("/v1/engine/weights", update_weights)
    router.add_post("/v1/engine/workers/{operation}", obey)


async def show_engine(request: web.Request) -> web.StreamResponse:
    return _json(_control(request).state())


async def pause_engine(request: web.Request) -> web.StreamResponse:
    """200 once nothing runs any more."""
    _require_coordinator(request)
    fields = _Fields(await read_json_object(request, optional=True), ("mode", "deadline_s", "lease_s"))
    deadline_s = fields.deadline()
    lease_s = fields.seconds("lease_s", LEASE_S, least=SHORTEST_LEASE_S)
    if lease_s <= deadline_s:
        raise BadRequest(f"lease_s must be more than deadline_s, which is {deadline_s:g}", field="lease_s")
    return _json(await _control(request).pause(deadline_s, lease_s))


async def resume_engine(request: web.Request) -> web.StreamResponse:
    _require_coordinator(request)
    _Fields(await read_json_object(request, optional=True), ())
    return _json(await _control(request).resume())


async def update_weights(request: web.Request) -> web.StreamResponse:
    """200 once the weights are in force, with what became of each endpoint; 502 with the same where none took them."""
    _require_coordinator(request)
    fields = _Fields(await read_json_object(request), ("version", "path", "model", "mode", "deadline_s"))
    control = _control(request)
    weights = Weights(fields.version(), fields.text("path"))
    model = control.named(fields.text("model"))
    try:
        return _json(await control.update(Update(model, weights, fields.deadline())))
    except UpdateRefused as error:
        endpoints = [asdict(endpoint) for endpoint in error.report.endpoints]
        return _json({**control_error(error), "endpoints": endpoints}, error.status)


async def obey(request: web.Request) -> web.StreamResponse:
    """What the coordinator tells a worker. For anybody else there is no such thing."""
    if not request.get(OF_A_PEER, False):
        raise NotFound(f"there is no {request.method} {request.path}")
    return _json(await _control(request).obey(request.match_info["operation"], await read_json_object(request)))


def _control(request: web.Request) -> EngineControl:
    return request.app[STATE].engine


def _require_coordinator(request: web.Request) -> None:
    """Raises: OwnedElsewhere, which passes the request on."""
    if request.app[STATE].sessions.slot != COORDINATOR:
        raise OwnedElsewhere("the engine", COORDINATOR)


class _Fields:
    """Checked reads of a body. All raise BadRequest, naming the field."""

    def __init__(self, body: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for name in body:
            if name not in known:
                raise BadRequest(f"unknown field {name}; known are {', '.join(known) or 'none'}", field=name)
        self._body = body

    def deadline(self) -> float:
        """Seconds until what runs is cut."""
        mode = self._body.get("mode", PauseMode.DRAIN)
        if mode not in list(PauseMode):
            raise BadRequest(f"mode must be one of {', '.join(PauseMode)}", field="mode")
        if mode == PauseMode.DRAIN:
            return self.seconds("deadline_s", DRAIN_S)
        if self._body.get("deadline_s"):
            raise BadRequest("mode cut waits for nothing, so it has no deadline_s", field="deadline_s")
        return 0.0

    def seconds(self, name: str, default: float, least: float = 0.0) -> float:
        value = self._body.get(name, default)
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or not least <= value <= LONGEST_S:
            raise BadRequest(f"{name} must be a number of seconds from {least:g} to {LONGEST_S:g}", field=name)
        return float(value)

    def version(self) -> int:
        value = self._body.get("version")
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST_VERSION:
            raise BadRequest(f"version must be an integer from 0 to {LARGEST_VERSION}", field="version")
        return value

    def text(self, name: str) -> str | None:
        value = self._body.get(name)
        if value is not None and (not isinstance(value, str) or not value):
            raise BadRequest(f"{name} must be a text that is not empty", field=name)
        return value


def _json(document: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(document), content_type="application/json")
