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


@pytest.mark.parametrize("url", ["", "nope", "127.0.0.1:8400", "ftp://host", "file:///etc", "http://"])
def test_what_is_no_url_of_a_server(url: str) -> None:
    with pytest.raises(click.ClickException, match=r"is no URL of a server; it has the form http://127"):
        call("GET", url, "/v1/sessions")


def test_a_path_that_cannot_be_asked_for() -> None:
    with pytest.raises(click.ClickException, match="cannot be asked for"):
        call("GET", "http://127.0.0.1:1", "/v1/sessions/a\nb")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"", "broke off its answer to /x: RemoteDisconnected"),
        (b"SSH-2.0-server\r\n", "broke off its answer to /x: BadStatusLine"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "broke off its answer to /x: IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n<p/>", "answers /x with no JSON; is a rollserve server there"),
    ],
)
async def test_what_is_no_answer_of_ours(answer: bytes, told: str) -> None:
    async def give(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(give, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        with pytest.raises(click.ClickException, match=told):
            await asyncio.to_thread(call, "GET", f"http://{host}:{port}", "/x")
