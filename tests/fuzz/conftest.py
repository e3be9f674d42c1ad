"""Servers in threads of their own, for clients that block; what they log as a fault fails the test, whatever the client saw."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import requests
import schemathesis

from adapter.config import Config
from adapter.http.state import ServerState
from adapter.render.prompt import Renderer
from engine.types import GenerateRequest, TokenChunk
from tests.fuzz.fuzzing import ADMIN
from tests.support.assets import tokenizer_dir
from tests.support.engine import Answer, FakeEngine
from tests.support.scripted import scripted_server
from tests.support.server import serving
from tests.support.tried import TRIED

SCRIPT = {"default": {"text": "A short reply."}}
STOP_ID = 151645


@dataclass(frozen=True)
class FuzzedServer:
    """``loop`` is the server's: what belongs to ``state`` is looked at there."""

    url: str
    state: ServerState
    loop: asyncio.AbstractEventLoop


# Ended with these tests: grpc.aio shares one completion queue between a process's event loops, and others wait on it behind these.
@pytest.fixture(scope="package")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzedServer]:
    """In front of the scripted model in a real tritonserver."""
    folder = tmp_path_factory.mktemp("fuzzed")
    with _in_a_thread(lambda: scripted_server(folder, SCRIPT, model_alias=("*",), max_tokens=32)) as server:
        yield server


@pytest.fixture(scope="package")
def keyed() -> Iterator[FuzzedServer]:
    """With access keys on; its engine always says the same."""
    with _in_a_thread(_serve_with_keys) as server:
        yield server


class _SameAnswer(FakeEngine):
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        self.answers.append(Answer([[14990, STOP_ID]]))
        async for chunk in super().generate(request):
            yield chunk
        self.requests.clear()


@asynccontextmanager
async def _serve_with_keys() -> AsyncIterator[Any]:
    config = Config(admin_key=ADMIN, model_alias=("*",))
    async with serving(_SameAnswer(), Renderer.load(tokenizer_dir("qwen2_5")), config) as server:
        yield server


@contextmanager
def _in_a_thread(start: Callable[[], AbstractAsyncContextManager[Any]]) -> Iterator[FuzzedServer]:
    ready: Future[tuple[FuzzedServer, asyncio.Event]] = Future()

    async def serve() -> None:
        over = asyncio.Event()
        async with start() as server:
            ready.set_result((FuzzedServer(server.url, server.state, asyncio.get_running_loop()), over))
            await over.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        server, over = ready.result()
        yield server
        server.loop.call_soon_threadsafe(over.set)
    finally:
        thread.join()


@pytest.fixture(scope="package")
def description(fuzzed: FuzzedServer) -> Any:
    made = schemathesis.openapi.from_url(f"{fuzzed.url}/openapi.json")
    # Here access keys are off, and what comes in their places would name a session.
    made.config.generation.with_security_parameters = False
    return made


@pytest.fixture(scope="package")
def connection() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


@pytest.fixture
def tried(record_property: Any) -> Iterator[Callable[[str], Counter[int]]]:
    """Counts of statuses, by what was tried: they are told at the end of the run. 0 is a connection that ended without one."""
    counted: dict[str, Counter[int]] = {}
    yield lambda what: counted.setdefault(what, Counter())
    for what, counts in counted.items():
        record_property(TRIED, [what, dict(sorted(counts.items()))])


@pytest.fixture(autouse=True)
def no_fault_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.ERROR):
        yield
    faults = [record.getMessage() for when in ("setup", "call") for record in caplog.get_records(when)]  # type: ignore[arg-type]
    assert faults == []
