"""``GET /openapi.json``: it describes every route there is, and no other; errors are as it says."""

from __future__ import annotations

from aiohttp import web

from adapter.http.app import build_app
from adapter.http.openapi import describe
from tests.support.engine import FakeEngine


def routes(app: web.Application) -> set[tuple[str, str]]:
    """Method and path, as the router has them. HEAD is there wherever GET is."""
    return {
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }


def described() -> set[tuple[str, str]]:
    return {(method.upper(), path) for path, item in describe()["paths"].items() for method in item}


async def test_routes_and_description_are_the_same(serve) -> None:
    async with serve(FakeEngine()) as server, server.http.get("/openapi.json") as response:
        assert response.status == 200
        assert (await response.json())["paths"] == describe()["paths"]
        assert routes(build_app(server.state)) == described()
