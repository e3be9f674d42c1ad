"""``GET /openapi.json``: it describes every route there is, and no other; errors are as it says."""

from __future__ import annotations

import pytest
from aiohttp import web

from adapter.http.app import build_app
from adapter.http.auth import Role
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


@pytest.mark.parametrize(
    ("path", "roles"),
    [
        ("/healthz", set()),
        ("/v1/messages", {Role.SESSION}),
        ("/s/{sid}/v1/models", {Role.SESSION}),
        ("/v1/sessions/{sid}/history", {Role.SESSION}),
        ("/v1/sessions/{sid}", {Role.ADMIN}),
        ("/v1/engine/weights", {Role.ADMIN}),
        ("/metrics", {Role.ADMIN}),
    ],
)
def test_whose_key_is_taken_is_described(path: str, roles: set[Role]) -> None:
    description = describe()
    known = description["components"]["securitySchemes"]
    for operation in description["paths"][path].values():
        taken = [item for requirement in operation["security"] for item in requirement.items()]
        assert {role for _, named in taken for role in named} == roles
        assert [scheme for scheme, _ in taken] == (list(known) if roles else [])
