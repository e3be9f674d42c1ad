"""A server in a thread of its own, for a client that blocks; and how many inputs were tried, told at the end of the run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest

from adapter.http.state import ServerState
from tests.support.scripted import scripted_server

SCRIPT = {"default": {"text": "A short reply."}}


@dataclass(frozen=True)
class FuzzedServer:
    """``loop`` is the server's: what belongs to ``state`` is looked at there."""

    url: str
    state: ServerState
    loop: asyncio.AbstractEventLoop


# Ended with its tests: grpc.aio shares one completion queue between a process's event loops, and others wait on it behind these.
@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzedServer]:
    ready: Future[FuzzedServer] = Future()
    over: Future[asyncio.Event] = Future()
    thread = threading.Thread(target=_serve, args=(tmp_path_factory.mktemp("fuzzed"), ready, over))
    thread.start()
    try:
        server = ready.result()
        yield server
        server.loop.call_soon_threadsafe(over.result().set)
    finally:
        thread.join()


def _serve(run_dir: Path, ready: Future[FuzzedServer], over: Future[asyncio.Event]) -> None:
    async def serve() -> None:
        end = asyncio.Event()
        over.set_result(end)
        async with scripted_server(run_dir, SCRIPT, model_alias=("*",), max_tokens=32) as server:
            ready.set_result(FuzzedServer(server.url, server.state, asyncio.get_running_loop()))
            await end.wait()

    try:
        asyncio.run(serve())
    except BaseException as error:
        if ready.done():
            raise
        ready.set_exception(error)
