"""Bytes that are no HTTP, or hardly: what is answered is no fault, the connection ends, the next one is served, nothing is kept.

Each input is sent on a connection of its own. A well-formed turn on another is answered while that one is still open; then the
client says that nothing more will come, and reads to the end.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import socket
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from urllib.parse import urlsplit

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.conftest import FuzzedServer
from tests.fuzz.fuzzing import EXAMPLES, SECONDS, examples

SAID = [{"role": "user", "content": "hi"}]
BODY = json.dumps({"messages": SAID, "max_tokens": 4}).encode()
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
DEEP = 100_000
LONG = 3_000_000
"""Characters; less than what a body may have."""


def request(body: bytes = BODY, head: str = "", path: str = "/v1/messages", length: object = None) -> bytes:
    size = len(body) if length is None else length
    return f"POST {path} HTTP/1.1\r\nHost: a\r\n{head}Content-Length: {size}\r\n\r\n".encode("latin-1") + body


def chunked(*parts: bytes, head: str = "") -> bytes:
    start = f"POST /v1/messages HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n{head}\r\n"
    return start.encode() + b"".join(parts)


def chunk(data: bytes, size: str | None = None) -> bytes:
    return (
        f"{len(data):x}".encode() + b"\r\n" + data + b"\r\n"
        if size is None
        else size.encode() + b"\r\n" + data + b"\r\n"
    )


END = b"0\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "a line end": b"\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "another version": b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    "no version": b"GET /healthz\r\n\r\n",
    "a preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "half a request line": b"POST /v1/mes",
    "half a header": b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nConte",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "a header without a colon": b"GET /healthz HTTP/1.1\r\nHost a\r\n\r\n",
    "a NUL in the path": b"GET /heal\x00thz HTTP/1.1\r\nHost: a\r\n\r\n",
    "a NUL in a header": b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n",
    "a bare CR": b"GET /healthz HTTP/1.1\rHost: a\r\n\r\n",
    "a folded header": b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n\r\n",
    "invalid escapes": b"GET /v1/sessions/%zz%ff%00 HTTP/1.1\r\nHost: a\r\n\r\n",
    "bytes that are no UTF-8 in the path": b"GET /v1/sessions/\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
    "a whole URL": b"GET http://[::1/v1/sessions HTTP/1.1\r\nHost: a\r\n\r\n",
    "a path of dots": b"GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n",
    "a long path": b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "a long header": request(head="X: " + "a" * 20_000 + "\r\n"),
    "many headers": request(head="".join(f"X-{number}: a\r\n" for number in range(500))),
    "a length that is no number": request(length="many"),
    "a negative length": request(length=-5),
    "a huge length": request(length=10**30),
    "a length over the limit": request(length=10**12),
    "a length with a sign": request(length="+5"),
    "a length that is too short": request(length=7),
    "a length that is too long": request(length=len(BODY) + 9),
    "two lengths": request(head="Content-Length: 5\r\n"),
    "a length and chunks": chunked(chunk(BODY), END, head="Content-Length: 5\r\n"),
    "chunks": chunked(chunk(BODY[:9]), chunk(BODY[9:]), END),
    "a chunk's size that is no number": chunked(chunk(BODY, "xyz"), END),
    "a negative chunk": chunked(chunk(BODY, "-5"), END),
    "a huge chunk": chunked(chunk(BODY, "f" * 40), END),
    "a chunk that is too long": chunked(chunk(BODY, "5"), END),
    "a chunk that never ends": chunked(chunk(BODY, "fff")),
    "chunks without their end": chunked(chunk(BODY)),
    "a trailer that is none": chunked(chunk(BODY), b"0\r\n\x00\r\n\r\n"),
    "unknown codings": chunked(chunk(BODY), END).replace(b"chunked", b"gzip, chunked, x"),
    "pipelined": HEALTH * 20,
    "pipelined turns": request() * 3,
    "pipelined behind rubbish": request() + b"\x00rubbish\r\n\r\n" + HEALTH,
    "an upgrade": b"GET /v1/responses HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "an unknown expectation": request(head="Expect: \xfe\x8f\r\n"),
    "a body that is no UTF-8": request(b'{"messages": "\xff\xfe"}'),
    "a NUL in a body": request(b'{"messages": [{"role": "user", "content": "\x00"}]}'),
    "an escaped NUL": request(b'{"messages": [{"role": "user", "content": "\\u0000"}]}'),
    "half a surrogate pair": request(b'{"messages": [{"role": "user", "content": "\\ud800"}]}'),
    "deep lists": request(b'{"messages": ' + b"[" * DEEP + b"]" * DEEP + b"}"),
    "deep objects": request(b'{"messages":' * DEEP + b"1" + b"}" * DEEP),
    "deep, but read": request(b'{"messages": ' + json.dumps(SAID).encode() + b', "metadata": ' + b"[" * 900 + b"]" * 900 + b"}"),
    "a long text": request(json.dumps({"messages": "x" * LONG}).encode()),
    "a long name": request(json.dumps({"x" * LONG: 1, "messages": SAID}).encode()),
    "a long number": request(b'{"messages": [], "n": ' + b"9" * LONG + b"}"),
    "a number beyond all": request(b'{"messages": [], "temperature": 1e99999}'),
    "names that come twice": request(b'{"messages": 1, "messages": 2}'),
    "a zip bomb": request(b"\x1f\x8b\x08\x00" + b"\x00" * 2000, head="Content-Encoding: gzip\r\n"),
}  # fmt: skip
REFUSED = tuple(
    name for name in HOSTILE if name not in ("pipelined turns", "pipelined behind rubbish", "chunks", "pipelined")
)


def exchange(url: str, sent: bytes, meanwhile: Callable[[], None]) -> bytes:
    """All that comes back until the server closes; nothing more is sent behind ``meanwhile``. Raises: TimeoutError."""
    address = urlsplit(url)
    with (
        socket.create_connection((address.hostname or "", address.port or 0), timeout=SECONDS) as connection,
        ThreadPoolExecutor(1) as reader,
    ):
        came = reader.submit(_read, connection)
        with suppress(ConnectionError):  # closed on what it has not read
            connection.sendall(sent)
        meanwhile()
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        return came.result()


def _read(connection: socket.socket) -> bytes:
    """Raises: TimeoutError."""
    seen = bytearray()
    with suppress(ConnectionError):
        while data := connection.recv(2**16):
            seen += data
    return bytes(seen)


@pytest.fixture
def wire(
    fuzzed: FuzzedServer, connection: requests.Session, tried: Callable[[str], Counter[int]]
) -> Callable[[bytes], list[int]]:
    statuses = tried("bytes on a connection")

    def served_beside() -> None:
        answer = connection.post(f"{fuzzed.url}/v1/messages/count_tokens", data=BODY, timeout=SECONDS)
        assert answer.status_code == 200, answer.text

    def send(sent: bytes) -> list[int]:
        answered = [int(status) for status in STATUS.findall(exchange(fuzzed.url, sent, served_beside))]
        assert not [status for status in answered if status >= 500 and status != 503], sent[:200]
        statuses.update(answered or [0])
        return answered

    return send


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes(wire: Callable[[bytes], list[int]], name: str) -> None:
    wire(HOSTILE[name])


def test_what_is_good_is_answered(wire: Callable[[bytes], list[int]]) -> None:
    """Otherwise the tests here show nothing."""
    assert set(wire(HOSTILE["pipelined"])) == {200}
    assert wire(HOSTILE["many headers"]) == [400]
    assert wire(HOSTILE["a negative length"]) == [400]


@st.composite
def spoilt_bytes(draw: st.DrawFn) -> bytes:
    """One or two good requests, with bytes flipped, cut out, put in or doubled."""
    good = st.sampled_from((request(), chunked(chunk(BODY[:20]), chunk(BODY[20:]), END), HEALTH))
    data = bytearray(b"".join(draw(st.lists(good, min_size=1, max_size=2))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        to = min(len(data), at + draw(st.integers(0, 12)))
        match draw(st.sampled_from(("put", "cut", "double", "end"))):
            case "put":
                data[at:at] = draw(
                    st.one_of(st.binary(max_size=6), st.sampled_from((b"\r\n", b"\x00", b"0\r\n\r\n", b"chunked")))
                )
            case "cut":
                del data[at:to]
            case "double":
                data[at:at] = data[at:to]
            case _:
                del data[at:]
    return bytes(data)


def test_any_bytes(wire: Callable[[bytes], list[int]]) -> None:
    @examples(20 * EXAMPLES)
    @given(spoilt_bytes())
    def check(sent: bytes) -> None:
        wire(sent)

    check()


async def _blocks() -> int:
    """Memory blocks that Python has given out, garbage left out."""
    for _ in range(3):
        gc.collect()
    return sys.getallocatedblocks()


ROUNDS = 3


def test_nothing_is_kept_of_them(fuzzed: FuzzedServer, wire: Callable[[bytes], list[int]]) -> None:
    """Were one thing kept of each, there would be one more of each in every round."""

    def after_a_round() -> int:
        for name in REFUSED:
            wire(HOSTILE[name])
        return asyncio.run_coroutine_threadsafe(_blocks(), fuzzed.loop).result(SECONDS)

    after_a_round()
    blocks = [after_a_round() for _ in range(1 + ROUNDS)]
    assert min(after - before for before, after in pairwise(blocks)) < len(REFUSED), blocks
