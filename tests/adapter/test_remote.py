"""The command line's calls to a server that asks for keys; who can reach one."""

from __future__ import annotations

import asyncio

import click
import pytest

from adapter.remote import ADMIN_KEY, call, is_loopback
from tests.adapter.http.conftest import qwen, serve
from tests.support.engine import FakeEngine

__all__ = ["qwen", "serve"]

KEY = "an-admin-key-of-tests"


async def test_the_key_is_taken_from_the_environment(serve, monkeypatch) -> None:
    async with serve(FakeEngine(), admin_key=KEY) as server:
        monkeypatch.setenv(ADMIN_KEY, KEY)
        assert await asyncio.to_thread(call, "GET", server.url, "/v1/sessions") == {"sessions": []}
        monkeypatch.delenv(ADMIN_KEY)
        with pytest.raises(click.ClickException, match=f"401 an access key is needed; it is read from {ADMIN_KEY}"):
            await asyncio.to_thread(call, "GET", server.url, "/v1/sessions")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("10.0.0.5", False), ("node-7", False), ("", False)],
)  # fmt: skip
def test_who_can_reach_a_server(host, loopback) -> None:
    assert is_loopback(host) is loopback
