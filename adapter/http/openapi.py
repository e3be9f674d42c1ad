"""``GET /openapi.json``: the server described as OpenAPI 3.1, for clients that are generated and for tests that make up requests.

What each route takes and gives stands in ``openapi_operations``; bodies come from the protocols' own tables
(``openapi_bodies``), error bodies from what the protocols render (``openapi_errors``), whose key is taken from ``http.auth``: the
role stands where OpenAPI 3.1 has it, in the security requirement's array. The description is the same for everybody and is open to
all: it tells nothing of what is served, so it does not say either whether access keys are on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import orjson
from aiohttp import web

from adapter.http.auth import role_needed
from adapter.http.openapi_errors import error_schema
from adapter.http.openapi_operations import OPERATIONS, Operation
from adapter.protocols.base import WireProtocol

OPENAPI = "/openapi.json"
PREFIXES = ("", "/s/{sid}")

SECURITY_SCHEMES: Mapping[str, Any] = MappingProxyType(
    {
        "bearer": {"type": "http", "scheme": "bearer"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        "x-goog-api-key": {"type": "apiKey", "in": "header", "name": "x-goog-api-key"},
        "key": {"type": "apiKey", "in": "query", "name": "key"},
    }
)
"""Where ``http.auth.credentials`` looks."""

_PLACE = re.compile(r"\{(\w+)\}")


def add_routes(router: web.UrlDispatcher) -> None:
    body = orjson.dumps(describe())

    async def show(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    router.add_get(OPENAPI, show)


def describe() -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        for prefix in PREFIXES if operation.prefixed else PREFIXES[:1]:
            path = prefix + operation.path
            paths.setdefault(path, {})[operation.method.lower()] = _describe_operation(operation, path)
    return {
        "openapi": "3.1.0",
        "info": {"title": "rollserve", "version": "1"},
        "paths": paths,
        "components": {"schemas": _error_schemas(), "securitySchemes": dict(SECURITY_SCHEMES)},
    }


def _describe_operation(operation: Operation, path: str) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": f"{operation.method.lower()} {path}",
        "summary": operation.summary,
        "parameters": [*_in_path(path), *operation.parameters],
        "security": _security(path),
        "responses": {**_answers(operation), **_refusals(operation)},
    }
    if operation.body is not None:
        described["requestBody"] = {
            "required": operation.body_required,
            "content": {"application/json": {"schema": operation.body}},
        }
    return described


def _security(path: str) -> list[dict[str, list[str]]]:
    """One of them is enough. The empty one is for servers without access keys."""
    role = role_needed(path)
    return [] if role is None else [{}, *({scheme: [role.value]} for scheme in SECURITY_SCHEMES)]


def _in_path(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PLACE.findall(path)
    ]


def _answers(operation: Operation) -> dict[str, Any]:
    content = {kind: ({} if schema is None else {"schema": schema}) for kind, schema in operation.answers}
    answer: dict[str, Any] = {"description": "done"} | ({"content": content} if content else {})
    return {str(status): answer for status in (operation.status, *operation.also)}


def _refusals(operation: Operation) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{_error_name(operation.protocol)}"}
    content = {"application/json": {"schema": schema}}
    return {str(status): {"description": "refused", "content": content} for status in operation.refusals}


def _error_name(protocol: WireProtocol | None) -> str:
    return f"{'control' if protocol is None else protocol.name}_error"


def _error_schemas() -> dict[str, Any]:
    protocols = {_error_name(operation.protocol): operation.protocol for operation in OPERATIONS}
    return {name: error_schema(protocol) for name, protocol in protocols.items()}
