"""Requests made up from the server's own description, over a real connection, against the scripted model in a real tritonserver.

Whatever comes, there is an answer, within a time limit, with a status, a content type and a body that the description has; no
5xx but 503. Afterwards all sessions can be dropped, and nothing is left of them. ``FUZZ_EXAMPLES`` is how many inputs are made up
for each operation.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from adapter.http.openapi import describe
from adapter.http.session_name import CLIENT_HEADERS
from adapter.reply import LiveReply
from adapter.session import Session
from tests.fuzz.conftest import FuzzedServer
from tests.support.tried import TRIED

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "4"))
SECONDS = 30.0
"""Within which there is an answer. Nothing here takes a hundredth of it; it is to tell a hang."""

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
SESSION = "fuzzed"
FEED = "/v1/sessions/{sid}/events"
"""Ends with its session, so it is given one that ends."""
PAUSE = "/v1/engine/pause"
"""Holds all that comes after it: let go on at once."""

MANY = settings(
    max_examples=EXAMPLES,
    database=None,
    derandomize="FUZZ_EXAMPLES" not in os.environ,  # the ordinary run tries the same inputs each time
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)

# The server runs in this process: its random numbers are none of hypothesis' business.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")

TURNS = (
    "/v1/messages",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1beta/models/any:generateContent",
    "/api/console/chat",
)
HEADERS = (
    *CLIENT_HEADERS, "Authorization", "x-api-key", "x-goog-api-key", "Idempotency-Key", "Last-Event-ID", "Content-Encoding",
    "Content-Type", "Accept", "traceparent", "x-request-id",
)  # fmt: skip
HEADER_VALUE = st.one_of(
    st.sampled_from(
        ["", "gzip", "zstd, gzip", "br", "identity", "Bearer ", "Bearer a", "application/json; charset=x", "a" * 300]
    ),
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_characters="\x7f\x85\xa0"), max_size=80),
)
SAID = [{"role": "user", "content": "hi"}]
BODY = st.sampled_from(
    [
        json.dumps(body).encode()
        for body in ({}, {"messages": SAID}, {"input": "hi"}, {"contents": [{"parts": [{"text": "hi"}]}]})
    ]
    + [gzip.compress(b'{"messages": []}'), b"\xff", b""]
)

OPERATIONS = [(path, method) for path, item in describe()["paths"].items() for method in item]


@pytest.fixture(scope="module")
def description(fuzzed: FuzzedServer) -> Any:
    return schemathesis.openapi.from_url(f"{fuzzed.url}/openapi.json")


@pytest.fixture(scope="module")
def connection() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=lambda part: part)
def test_what_the_description_allows(
    fuzzed: FuzzedServer, description: Any, connection: requests.Session, record_property: Any, path: str, method: str
) -> None:
    tried: Counter[int] = Counter()

    @MANY
    @given(case=description[path][method].as_strategy(), known=st.booleans())
    def check(case: Any, known: bool) -> None:
        tried[answer(case, fuzzed.url, connection, known=known)] += 1

    check()
    record_property(TRIED, [f"{method.upper()} {path}", dict(sorted(tried.items()))])


@pytest.mark.parametrize("path", TURNS)
def test_any_headers(fuzzed: FuzzedServer, connection: requests.Session, record_property: Any, path: str) -> None:
    """Names of sessions, encodings, keys for retries: a reply, or an error of the request."""
    tried: Counter[int] = Counter()

    @MANY
    @given(headers=st.dictionaries(st.sampled_from(HEADERS), HEADER_VALUE, min_size=1, max_size=3), body=BODY)
    def check(headers: dict[str, str], body: bytes) -> None:
        encoded = {name: value.encode("latin-1") for name, value in headers.items()}
        response = connection.post(fuzzed.url + path, data=body, headers=encoded, timeout=SECONDS)
        assert response.status_code < 500 or response.status_code == 503, (response.text, headers)
        tried[response.status_code] += 1

    check()
    record_property(TRIED, [f"headers of {path}", dict(sorted(tried.items()))])


def test_nothing_is_left(fuzzed: FuzzedServer, connection: requests.Session) -> None:
    """The last test of this file: sessions that were opened on the way can be dropped, and no reply outlives them."""
    sessions = connection.get(f"{fuzzed.url}/v1/sessions", timeout=SECONDS).json()["sessions"]
    for session in sessions:
        name = quote(session["sid"], safe="")
        assert connection.delete(f"{fuzzed.url}/v1/sessions/{name}", timeout=SECONDS).status_code in (204, 404), name
    assert connection.get(f"{fuzzed.url}/v1/sessions", timeout=SECONDS).json() == {"sessions": []}
    kept = asyncio.run_coroutine_threadsafe(still_there(fuzzed), fuzzed.loop).result(SECONDS)
    assert kept == {"sessions": 0, "replies": 0}


async def still_there(server: FuzzedServer) -> dict[str, int]:
    """How many objects there are in the process, garbage left out."""
    assert server.state.sessions.live() == []
    gc.collect()
    objects = gc.get_objects()
    return {
        "sessions": sum(type(thing) is Session for thing in objects),
        "replies": sum(type(thing) is LiveReply for thing in objects),
    }


def answer(case: Any, url: str, connection: requests.Session, *, known: bool) -> int:
    """The status. ``known``: the session in the URL is one that there is."""
    if known and "sid" in case.path_parameters:
        connection.post(f"{url}/v1/sessions", json={"sid": SESSION}, timeout=SECONDS)
        case.path_parameters["sid"] = SESSION
    if known and case.path == FEED:
        connection.delete(f"{url}/v1/sessions/{SESSION}", timeout=SECONDS)
    response = case.call(base_url=url, session=connection, timeout=SECONDS)
    if case.path == PAUSE:
        connection.post(f"{url}/v1/engine/resume", timeout=SECONDS)
    checks = CHECKS if response.status_code != 503 else CHECKS[1:]
    case.validate_response(response, checks=checks)
    return int(response.status_code)
