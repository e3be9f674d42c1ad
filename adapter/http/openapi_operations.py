"""The operations of the server, one entry a route, as ``openapi`` describes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adapter.http import openapi_bodies as bodies
from adapter.http.openapi_errors import KINDS
from adapter.http.session_name import CLIENT_HEADERS
from adapter.http.speaking import protocol_of
from adapter.protocols.base import WireProtocol

JSON, EVENTS, PLAIN = "application/json", "text/event-stream", "text/plain"

Schema = dict[str, Any]
Answers = tuple[tuple[str, Schema | None], ...]

REFUSALS = tuple(sorted({kind.status for kind in KINDS} - {405, 500}))
"""405 is of methods that are not described (but for one, which only refuses), 500 is a fault of the server."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What one route takes and gives. ``path`` is without the prefix; ``prefixed``: there also under ``/s/{sid}``."""

    method: str
    path: str
    summary: str
    body: Schema | None = None
    answers: Answers = ((JSON, {"type": "object"}),)
    status: int = 200
    parameters: tuple[Schema, ...] = ()
    prefixed: bool = False
    body_required: bool = True
    refusals: tuple[int, ...] = REFUSALS
    also: tuple[int, ...] = ()
    """Further statuses with the same content."""

    @property
    def protocol(self) -> WireProtocol | None:
        return protocol_of(self.path)


def _parameter(where: str, name: str, schema: Schema) -> Schema:
    return {"name": name, "in": where, "required": False, "schema": schema}


def _with(*names: str) -> Answers:
    return ((JSON, {"type": "object", "required": list(names)}),)


_NAMES = tuple(_parameter("header", name, {"type": "string", "maxLength": 64}) for name in CLIENT_HEADERS)
_TURN = (*_NAMES, _parameter("header", "Idempotency-Key", {"type": "string", "maxLength": 64}))
_STREAMED: Answers = ((EVENTS, None),)
_NUMBER: Schema = {"type": "string", "pattern": "^[0-9]{1,4}$"}
_BEHIND = (_parameter("header", "Last-Event-ID", _NUMBER), _parameter("query", "starting_after", _NUMBER))


def _turn(path: str, summary: str, body: Schema, answers: Answers) -> Operation:
    return Operation("POST", path, summary, body, answers, parameters=_TURN, prefixed=True)


def _gemini(version: str) -> tuple[Operation, ...]:
    path = f"/{version}/models/{{model}}"
    alt = _parameter("query", "alt", {"enum": ["sse", "json"]})
    stream: Answers = ((JSON, None), (EVENTS, None))
    return (
        _turn(f"{path}:generateContent", "a reply", bodies.GEMINI, _with("candidates", "usageMetadata")),
        Operation(
            "POST", f"{path}:streamGenerateContent", "a reply, streamed", bodies.GEMINI, stream,
            parameters=(*_TURN, alt), prefixed=True,
        ),
        Operation(
            "POST", f"{path}:countTokens", "length of a prompt", bodies.GEMINI_COUNTED, _with("totalTokens"), parameters=_NAMES,
            prefixed=True,
        ),
    )  # fmt: skip


def _responses() -> tuple[Operation, ...]:
    path = "/v1/responses"
    one = f"{path}/{{id}}"
    whole = _with("id", "object", "status", "output")
    from_there = (
        _parameter("query", "stream", {"enum": ["true", "false"]}),
        _parameter("query", "starting_after", _NUMBER),
    )
    page = (
        _parameter("query", "limit", {"type": "integer", "minimum": 1, "maximum": 100}),
        _parameter("query", "order", {"enum": ["asc", "desc"]}),
        _parameter("query", "after", bodies.TEXT),
    )
    return (
        _turn(path, "a response", bodies.RESPONSES, whole + _STREAMED),
        Operation("GET", path, "no websockets: POST", refusals=(405, 426, *REFUSALS), answers=(), prefixed=True),
        Operation(
            "POST", f"{path}/input_tokens", "length of a prompt", bodies.RESPONSES, _with("input_tokens"),
            parameters=_NAMES, prefixed=True,
        ),
        Operation(
            "GET", one, "a stored response", answers=whole + _STREAMED, parameters=(*_NAMES, *from_there), prefixed=True
        ),
        Operation("DELETE", one, "forget a response", parameters=_NAMES, prefixed=True),
        Operation("POST", f"{one}/cancel", "stop a response in the background", parameters=_NAMES, prefixed=True),
        Operation(
            "GET", f"{one}/input_items", "what a response answered", answers=_with("data", "has_more"),
            parameters=(*_NAMES, *page), prefixed=True,
        ),
    )  # fmt: skip


def _protocols() -> tuple[Operation, ...]:
    reply = _with("id", "type", "role", "content", "stop_reason", "usage")
    return (
        _turn("/v1/messages", "a reply", bodies.MESSAGES, reply + _STREAMED),
        Operation(
            "POST", "/v1/messages/count_tokens", "length of a prompt", bodies.MESSAGES, _with("input_tokens"),
            parameters=_NAMES, prefixed=True,
        ),
        _turn("/v1/chat/completions", "a reply", bodies.CHAT, _with("id", "object", "choices", "usage") + _STREAMED),
        *_responses(),
        *_gemini("v1beta"),
        *_gemini("v1"),
        _turn("/api/console/chat", "a reply to new input", bodies.CONSOLE, ((JSON, None), (EVENTS, None))),
        *(
            operation
            for version in ("v1", "v1beta")
            for operation in (
                Operation("GET", f"/{version}/models", "what is served", answers=_with("data", "models"), prefixed=True),
                Operation("GET", f"/{version}/models/{{model}}", "one of them", answers=_with("id", "name"), prefixed=True),
            )
        ),
    )  # fmt: skip


def _sessions() -> tuple[Operation, ...]:
    one = "/v1/sessions/{sid}"
    export = _with("sid", "turn_count", "samples", "ledger")
    return (
        Operation(
            "POST", "/v1/sessions", "open a session", bodies.OPEN, _with("sid", "base_url"), 201, body_required=False
        ),
        Operation("GET", "/v1/sessions", "the sessions there are", answers=_with("sessions")),
        Operation("GET", one, "a session's tree", answers=_with("sid", "paths")),
        Operation("DELETE", one, "forget a session", answers=(), status=204),
        Operation("GET", f"{one}/explain", "how its turns were recognised", answers=_with("sid", "turns")),
        Operation("GET", f"{one}/samples", "what finish would give", answers=export),
        Operation("POST", f"{one}/finish", "samples; the session is over", bodies.FINISH, export, body_required=False),
        Operation("GET", f"{one}/events", "what its turns say, live", answers=_STREAMED, parameters=_BEHIND),
        Operation(
            "GET", f"{one}/replies/{{reply}}/events", "one reply's events", answers=_STREAMED, parameters=_BEHIND
        ),
        Operation("GET", f"{one}/history", "its conversation", answers=_with("sid", "messages")),
        Operation("POST", f"{one}/interrupt", "stop its turns", answers=_with("sid", "interrupted")),
    )  # fmt: skip


def _operators() -> tuple[Operation, ...]:
    engine = "/v1/engine"
    return (
        Operation("GET", engine, "the engine's state"),
        Operation("POST", f"{engine}/pause", "hold generation", bodies.PAUSE, body_required=False),
        Operation("POST", f"{engine}/resume", "let it go on", bodies.RESUME, body_required=False),
        Operation("POST", f"{engine}/weights", "new weights", bodies.WEIGHTS),
        Operation("POST", f"{engine}/workers/{{operation}}", "between workers; 404 for all others", bodies.OBJECT),
        Operation("GET", "/healthz", "this process serves", answers=_with("status"), refusals=()),
        Operation("GET", "/readyz", "a turn would be served", answers=_with("status"), refusals=(), also=(503,)),
        Operation("GET", "/metrics", "Prometheus metrics", answers=((PLAIN, None),)),
        Operation("GET", "/openapi.json", "this description", answers=_with("openapi", "paths"), refusals=()),
    )


OPERATIONS: tuple[Operation, ...] = (*_protocols(), *_sessions(), *_operators())
