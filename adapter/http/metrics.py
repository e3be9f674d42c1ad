"""``GET /metrics``, and what is counted at the server's edge: requests, and how late its event loop is.

Where access keys are on it takes the admin key (in Prometheus' configuration ``authorization``), unless ``--metrics-public``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from aiohttp import web

from adapter.exposition import CONTENT_TYPE, pieces
from adapter.gauges import ServerGauges, total
from adapter.http.auth import METRICS
from adapter.http.failures import Handler
from adapter.http.state import COUNTED_ELSEWHERE, STATE
from adapter.recorder import JournalRecorder

SESSION_PREFIX = "/s/{sid}"

LAG_INTERVAL_S = 0.1
"""Between two looks at the event loop. Each wakes an idle process, which costs some 100 us of cold caches."""


def add_metrics(app: web.Application) -> None:
    """The route, and what it tells."""
    state = app[STATE]
    metrics = state.services.watching.metrics
    if isinstance(state.sessions.recorder, JournalRecorder):
        state.sessions.recorder.journal.on_sync = metrics.journal_synced
    lag = LoopLag(metrics.loop_lag)
    app.router.add_get(METRICS, show_metrics)
    app.on_startup.append(lag.start)
    app.on_cleanup.append(lag.stop)


async def show_metrics(request: web.Request) -> web.StreamResponse:
    """In steps, between which turns go on."""
    state = request.app[STATE]
    services, sessions = state.services, state.sessions
    metrics, live = services.watching.metrics, await total(sessions.live())
    gauges = ServerGauges(services.admission, sessions, services.models, live, metrics.generating)
    body = []
    for piece in pieces([metrics.registry, gauges], sessions.slot):
        body.append(piece)
        await asyncio.sleep(0)
    return web.Response(body=b"".join(body), headers={"Content-Type": CONTENT_TYPE})


@web.middleware
async def counted(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Around every request. One whose client has left counts as 499 (nginx's number)."""
    status = 499
    try:
        response = await handler(request)
        status = response.status
        return response
    except web.HTTPException as error:
        status = error.status
        raise
    finally:
        if not request.get(COUNTED_ELSEWHERE, False):
            metrics = request.app[STATE].services.watching.metrics
            metrics.answered(request.method, route_of(request), status)


def route_of(request: web.Request) -> str | None:
    """As it was registered, so that a client's words are not in it; with and without ``/s/SID`` it is one."""
    resource = request.match_info.route.resource
    return None if resource is None else resource.canonical.removeprefix(SESSION_PREFIX)


class LoopLag:
    """Looks how late the event loop runs what is due."""

    def __init__(self, observe: Callable[[float], object]) -> None:
        self._observe = observe
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, app: web.Application) -> None:
        self._wait()

    async def stop(self, app: web.Application) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self._due = time.perf_counter() + LAG_INTERVAL_S
        self._timer = asyncio.get_running_loop().call_later(LAG_INTERVAL_S, self._look)

    def _look(self) -> None:
        self._observe(max(0.0, time.perf_counter() - self._due))
        self._wait()
