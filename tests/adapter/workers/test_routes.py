"""Every route that names a session leads to its owner, whichever worker is asked; the others never build it."""

from __future__ import annotations

from typing import Any

from adapter.http.app import build_app
from adapter.ownership import Ownership
from tests.adapter.http.conftest import encode, qwen
from tests.adapter.workers.test_forwarding import END, Pair, body, pair
from tests.support.engine import Answer
from tests.support.server import TestServer

__all__ = ["encode", "qwen"]

FILLED = {"{model:.+}": "slime-actor", "{model}": "slime-actor", "{reply}": "1", "{id}": "resp_none"}
OF_NO_SESSION = ("/models", "/models/{model}", "/events")
"""Of all sessions; or without an end, ``test_forwarding`` follows one."""


def routes(server: TestServer) -> list[tuple[str, str]]:
    """``(method, path)`` with ``{sid}`` in it; what ends a session comes last."""
    found = [
        (route.method, route.resource.canonical)
        for route in build_app(server.state).router.routes()
        if route.resource is not None and "{sid}" in route.resource.canonical and route.method != "HEAD"
    ]
    wanted = [each for each in found if not (each[0] == "GET" and each[1].endswith(OF_NO_SESSION))]
    return sorted(wanted, key=lambda each: (each[0] == "DELETE", each[1].endswith("/finish"), each))


async def asked(server: TestServer, method: str, path: str, sid: str) -> tuple[int, Any]:
    for name, value in {**FILLED, "{sid}": sid}.items():
        path = path.replace(name, value)
    async with server.http.request(method, path, json={}) as response:
        return response.status, (await response.text()).replace(sid, "SID")


async def opened(two: Pair, *sids: str) -> None:
    """With one turn each."""
    for sid in sids:
        async with two.asked.http.post("/v1/sessions", json={"sid": sid}) as response:
            assert response.status == 201
        async with two.asked.http.post(f"/s/{sid}/v1/messages", json=body()) as response:
            assert response.status == 200


async def test_the_owner_answers_whoever_is_asked(qwen, encode) -> None:
    theirs, directly = Ownership(1, 2).new_name(), Ownership(1, 2).new_name()
    async with pair(qwen, *(Answer([[*encode("hello"), END]]) for _ in range(2))) as two:
        await opened(two, theirs, directly)
        everything = routes(two.asked)
        assert len(everything) > 20
        for method, path in everything:
            passed_on, own = (
                await asked(two.asked, method, path, theirs),
                await asked(two.other, method, path, directly),
            )
            assert passed_on[0] == own[0], f"{method} {path}: {passed_on} {own}"
            assert passed_on[0] < 500, f"{method} {path}: {passed_on}"
            if passed_on[0] < 300 and not path.endswith(("/explain", "/history", "/samples", "/finish", "{sid}")):
                assert passed_on[1] == own[1], f"{method} {path}"
        assert not list(two.asked.state.sessions.live())
        assert not list(two.asked.state.sessions.stored())
