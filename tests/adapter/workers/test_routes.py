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

FILLED = {"{model:.+}": "slime-actor", "{model}": "slime-actor", "{reply}": "1"}
STORED = "/v1/responses/{id}"
STATUS = {
    ("GET", STORED): 200,
    ("GET", f"{STORED}/input_items"): 200,
    ("DELETE", STORED): 200,
    ("POST", f"{STORED}/cancel"): 400,
}
"""Of what is asked of a stored response."""
DIFFERENT = ("/explain", "/history", "/samples", "/finish", "{sid}", STORED)
"""Times and ids are in their answers."""
OF_NO_SESSION = ("/models", "/models/{model}", "/events")
"""Of all sessions; or without an end, ``test_forwarding`` follows one."""


def routes(server: TestServer) -> list[tuple[str, str]]:
    """``(method, path)`` with ``{sid}`` in it; what ends a stored response or a session comes last."""
    found = [
        (route.method, route.resource.canonical)
        for route in build_app(server.state).router.routes()
        if route.resource is not None and "{sid}" in route.resource.canonical and route.method != "HEAD"
    ]
    wanted = [each for each in found if not (each[0] == "GET" and each[1].endswith(OF_NO_SESSION))]
    return sorted(wanted, key=lambda each: (each[1].endswith("/finish"), each[0] == "DELETE", each))


async def asked(server: TestServer, method: str, path: str, sid: str, stored: str) -> tuple[int, Any]:
    for name, value in {**FILLED, "{sid}": sid, "{id}": stored}.items():
        path = path.replace(name, value)
    async with server.http.request(method, path, json={}) as response:
        return response.status, (await response.text()).replace(sid, "SID").replace(stored, "RESPONSE")


async def opened(two: Pair, *sids: str) -> list[str]:
    """With two turns each; gives the ids of the stored responses that the second ones are."""
    stored = []
    for sid in sids:
        async with two.asked.http.post("/v1/sessions", json={"sid": sid}) as response:
            assert response.status == 201
        async with two.asked.http.post(f"/s/{sid}/v1/messages", json=body()) as response:
            assert response.status == 200
        async with two.asked.http.post(f"/s/{sid}/v1/responses", json={"input": "hi"}) as response:
            stored.append((await response.json())["id"])
    return stored


async def test_the_owner_answers_whoever_is_asked(qwen, encode) -> None:
    theirs, directly = Ownership(1, 2).new_name(), Ownership(1, 2).new_name()
    async with pair(qwen, *(Answer([[*encode("hello"), END]]) for _ in range(4))) as two:
        stored = await opened(two, theirs, directly)
        everything = routes(two.asked)
        assert len(everything) > 20
        for method, path in everything:
            passed_on, own = (
                await asked(two.asked, method, path, theirs, stored[0]),
                await asked(two.other, method, path, directly, stored[1]),
            )
            assert passed_on[0] == own[0], f"{method} {path}: {passed_on} {own}"
            assert passed_on[0] < 500, f"{method} {path}: {passed_on}"
            assert passed_on[0] == STATUS.get((method, path.removeprefix("/s/{sid}")), passed_on[0]), f"{method} {path}"
            if passed_on[0] < 300 and (method == "DELETE" or not path.endswith(DIFFERENT)):
                assert passed_on[1] == own[1], f"{method} {path}"
        assert not list(two.asked.state.sessions.live())
        assert not list(two.asked.state.sessions.stored())
