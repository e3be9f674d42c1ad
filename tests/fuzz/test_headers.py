"""Any headers before a body that the route takes, or before another: a reply, or an error of the request; and nothing is left."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
from collections import Counter
from collections.abc import Callable
from urllib.parse import quote

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from adapter.http.session_name import CLIENT_HEADERS
from adapter.reply import LiveReply
from adapter.session import Session
from tests.fuzz.conftest import FuzzedServer
from tests.fuzz.fuzzing import EXAMPLES, SECONDS, examples, valid_body

TURNS = (
    "/v1/messages",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1beta/models/any:generateContent",
    "/api/console/chat",
)
HEADERS = (
    *CLIENT_HEADERS, "Authorization", "x-api-key", "x-goog-api-key", "Idempotency-Key", "Last-Event-ID", "Content-Encoding",
    "Content-Type", "Accept", "traceparent", "x-request-id", "x-stainless-retry-count", "Expect",
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(
        (
            *("", "gzip", "zstd, gzip", "br", "identity", "Bearer ", "Bearer a", "application/json; charset=x"),
            *("a" * 300, "1", "text/event-stream", f"00-{'0' * 32}-{'0' * 16}-00"),
        )
    ),
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_characters="\x7f\x85\xa0"), max_size=80),
)
SCRAPS = (gzip.compress(b'{"messages": []}'), b"\xff", b"", b"{}")


@pytest.mark.parametrize("path", TURNS)
def test_any_headers(
    fuzzed: FuzzedServer, connection: requests.Session, tried: Callable[[str], Counter[int]], path: str
) -> None:
    """Names of sessions, encodings, keys for retries."""
    statuses = tried(f"headers of POST {path}")
    body = json.dumps(valid_body(path)).encode()

    def post(headers: dict[str, str], data: bytes) -> None:
        encoded = {name: value.encode("latin-1") for name, value in headers.items()}
        response = connection.post(fuzzed.url + path, data=data, headers=encoded, timeout=SECONDS)
        assert response.status_code < 500 or response.status_code == 503, (response.text, headers)
        statuses[response.status_code] += 1

    @examples(4 * EXAMPLES)
    @given(
        headers=st.dictionaries(st.sampled_from(HEADERS), VALUES, max_size=3),
        data=st.sampled_from((body, body, gzip.compress(body), *SCRAPS)),
    )
    def check(headers: dict[str, str], data: bytes) -> None:
        post(headers, data)

    post({"Content-Encoding": "gzip", CLIENT_HEADERS[0]: "headers"}, gzip.compress(body))
    assert statuses == {200: 1}
    check()


def test_nothing_is_left(fuzzed: FuzzedServer, connection: requests.Session) -> None:
    """Sessions that were opened on the way can be dropped, and no reply outlives them."""
    sessions = connection.get(f"{fuzzed.url}/v1/sessions", timeout=SECONDS).json()["sessions"]
    for session in sessions:
        name = quote(session["sid"], safe="")
        assert connection.delete(f"{fuzzed.url}/v1/sessions/{name}", timeout=SECONDS).status_code in (204, 404), name
    assert connection.get(f"{fuzzed.url}/v1/sessions", timeout=SECONDS).json() == {"sessions": []}
    kept = asyncio.run_coroutine_threadsafe(still_there(fuzzed), fuzzed.loop).result(SECONDS)
    assert kept == {"sessions": 0, "replies": 0}


async def still_there(server: FuzzedServer) -> dict[str, int]:
    """How many objects there are of it, garbage left out."""
    assert server.state.sessions.live() == []
    gc.collect()
    objects = gc.get_objects()
    return {
        "sessions": sum(type(thing) is Session for thing in objects),
        "replies": sum(type(thing) is LiveReply for thing in objects),
    }
