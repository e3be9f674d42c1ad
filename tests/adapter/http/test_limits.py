"""What a client may take up: headers."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.support.engine import FakeEngine

SECRET = "not-to-be-told-to-anybody"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (f"GET /v1/models?key={SECRET * 400} HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (f"GET /v1/models HTTP/1.1\r\nHost: x\r\nx-api-key: {SECRET * 400}\r\n\r\n", 431),
        (f"GET /v1/models HTTP/1.1\r\nHost: x\r\nx api key: {SECRET}\r\n\r\n", 400),
        (f"{SECRET}\r\n\r\n", 400),
        (f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: {SECRET}\r\n\r\n", 400),
    ],
)
async def test_what_is_no_http_is_answered_in_json_that_does_not_repeat_it(serve, sent, status) -> None:
    async with serve(FakeEngine()) as server:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent.encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert int(head.split(b" ")[1]) == status
        assert b"request-id: req_" in head.lower()
        assert set(json.loads(body)["error"]) == {"type", "message", "field"}
        assert SECRET.encode() not in head + body
