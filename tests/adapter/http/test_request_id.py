"""Whatever the answer to a request is, it has an id, which the log has too."""

from __future__ import annotations

import logging
from contextlib import suppress

import aiohttp
import pytest

from engine.errors import EngineFailed
from tests.support.engine import Answer, FakeEngine

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}]}


async def test_every_response_has_an_id_of_its_own(serve, encode) -> None:
    engine = FakeEngine([Answer([encode("first")]), Answer([encode("first")], error=EngineFailed("broke"))])
    seen = set()
    async with serve(engine) as server:
        for body in (BODY, {**BODY, "stream": True}, {"messages": 7}):
            async with server.http.post(CHAT, json=body) as response:
                with suppress(aiohttp.ClientPayloadError):  # the stream breaks off
                    await response.read()
                assert response.headers["x-request-id"] == response.headers["request-id"]
                seen.add(response.headers["x-request-id"])
        for path, headers in (("/nowhere", {}), ("/healthz", {"Expect": "the unexpected"})):
            async with server.http.get(path, headers=headers) as response:
                seen.add(response.headers["x-request-id"])
    assert len(seen) == 5


async def test_the_log_names_the_request_that_was_refused(serve, caplog: pytest.LogCaptureFixture) -> None:
    async with serve(FakeEngine()) as server:
        with caplog.at_level(logging.INFO, "rollserve.http"):
            async with server.http.post(CHAT, json={"messages": 7}) as response:
                issued = response.headers["x-request-id"]
    (record,) = [record for record in caplog.records if record.message == "refused"]
    assert record.fields["request_id"] == issued
