"""One tritonserver for the tests of the client and the probe, with the model that breaks the contract on demand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from engine.client import ClientOptions, TritonClient
from engine.types import EngineInfo
from tests.engine.misbehaving import INFO, MISBEHAVING, MODELS, EventLog
from tests.support.triton import running_triton


@dataclass(frozen=True, slots=True)
class Server:
    """``events`` is what the model logs."""

    address: str
    http_address: str
    events: EventLog
    info: EngineInfo = INFO


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """Shared, so nothing may break it for good."""
    run_dir = tmp_path_factory.mktemp("triton")
    events = EventLog(run_dir / "events.jsonl")
    parameters = {"max_seq_len": "4096", "vocab_size": "1000", "engine_log": str(events.path)}
    async with running_triton(MISBEHAVING, run_dir, parameters, models=MODELS) as triton:
        yield Server(triton.grpc_address, triton.http_address, events)


@pytest_asyncio.fixture
async def client(server: Server) -> AsyncIterator[TritonClient]:
    async with TritonClient(server.address, server.info, ClientOptions()) as client:
        yield client
