"""Encoded request bodies: read, bounded, and refused in the protocol's shape."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import orjson
import pytest
from backports import zstd

from adapter.errors import BadRequest, BodyTooLarge, UnsupportedEncoding
from adapter.http.encodings import decoded
from tests.support.engine import Answer, FakeEngine

TEXT = b'{"messages": [{"role": "user", "content": "hi"}]}' * 50


def bare_deflate(raw: bytes) -> bytes:
    machine = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return machine.compress(raw) + machine.flush()


ENCODED: list[tuple[str, bytes]] = [
    ("gzip", gzip.compress(TEXT)),
    ("x-gzip", gzip.compress(TEXT)),
    ("GZIP", gzip.compress(TEXT[:99]) + gzip.compress(TEXT[99:])),
    ("deflate", zlib.compress(TEXT)),
    ("deflate", bare_deflate(TEXT)),
    ("zstd", zstd.compress(TEXT)),
    ("zstd", zstd.compress(TEXT[:99]) + zstd.compress(TEXT[99:])),
    ("gzip, zstd", zstd.compress(gzip.compress(TEXT))),
    ("identity", TEXT),
    ("", TEXT),
]


@pytest.mark.parametrize(("encodings", "raw"), ENCODED, ids=range(len(ENCODED)))
def test_what_was_encoded_comes_back(encodings: str, raw: bytes) -> None:
    assert decoded(raw, encodings, len(TEXT)) == TEXT


@pytest.mark.parametrize(("encodings", "raw"), ENCODED[:-2], ids=range(len(ENCODED) - 2))
def test_what_is_larger_than_the_limit_is_refused(encodings: str, raw: bytes) -> None:
    with pytest.raises(BodyTooLarge):
        decoded(raw, encodings, len(TEXT) - 1)


@pytest.mark.parametrize(("encodings", "raw"), ENCODED[:-2], ids=range(len(ENCODED) - 2))
def test_a_body_that_breaks_off_is_refused(encodings: str, raw: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        decoded(raw[:-10], encodings, len(TEXT))
    assert caught.value.field == "body"


@pytest.mark.parametrize("encodings", ["gzip", "deflate", "zstd"])
def test_a_body_that_is_something_else_is_refused(encodings: str) -> None:
    with pytest.raises(BadRequest):
        decoded(b"not encoded at all", encodings, 1000)


@pytest.mark.parametrize("encodings", ["br", "gzip, gzip, gzip", "rot13"])
def test_an_encoding_that_is_not_known_is_refused(encodings: str) -> None:
    with pytest.raises(UnsupportedEncoding, match="gzip, x-gzip, deflate, zstd"):
        decoded(TEXT, encodings, len(TEXT))


def test_a_bomb_costs_no_more_than_the_limit() -> None:
    bomb = zstd.compress(bytes(1 << 26))
    assert len(bomb) < 1 << 13
    with pytest.raises(BodyTooLarge):
        decoded(bomb, "zstd", 1000)


BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_an_encoded_request_is_a_request(serve, encode, encoding) -> None:
    raw = {"gzip": gzip.compress, "zstd": zstd.compress}[encoding](orjson.dumps(BODY))
    engine = FakeEngine([Answer([encode("ok")])])
    async with serve(engine) as server:
        headers = {"Content-Encoding": encoding}
        async with server.http.post("/v1/messages", data=raw, headers=headers) as response:
            assert response.status == 200
            assert (await response.json())["content"][0]["text"] == "ok"


@pytest.mark.parametrize(
    ("encoding", "status", "kind"),
    [("br", 415, "invalid_request_error"), ("gzip", 400, "invalid_request_error")],
)
@pytest.mark.parametrize("route", ["/v1/messages", "/v1/chat/completions"])
async def test_a_body_that_cannot_be_read_is_an_error_in_the_protocols_shape(
    serve, route, encoding, status, kind
) -> None:
    async with serve(FakeEngine()) as server:
        headers = {"Content-Encoding": encoding}
        async with server.http.post(route, data=b"not gzip", headers=headers) as response:
            assert response.status == status
            assert (await response.json())["error"]["type"] == kind


async def test_the_limit_is_that_of_the_body_when_it_is_decoded(serve) -> None:
    async with serve(FakeEngine(), max_body_bytes=2000) as server:
        raw = zstd.compress(orjson.dumps({"messages": [{"role": "user", "content": "x" * 4000}]}))
        assert len(raw) < 2000
        headers = {"Content-Encoding": "zstd"}
        async with server.http.post("/v1/messages", data=raw, headers=headers) as response:
            assert response.status == 413
            assert (await response.json())["error"]["type"] == "request_too_large"
