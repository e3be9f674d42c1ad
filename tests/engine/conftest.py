"""A tritonserver for the tests of the client and the probe, with the model that breaks the contract on demand; and one where it
does that in the dialect of TensorRT-LLM's C++ model.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from engine.client import ClientOptions, TritonClient
from engine.types import EngineInfo
from tests.engine.misbehaving import CUMULATIVE_INFO, FACTS, INFO, MISBEHAVING, MODELS, EventLog
from tests.support.cpp_stand_in import running_as_cpp
from tests.support.triton import running_triton


@dataclass(frozen=True, slots=True)
class Server:
    """``events`` is what the model logs."""

    address: str
    http_address: str
    events: EventLog
    info: EngineInfo = INFO


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def delta_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """Shared, so nothing may break it for good."""
    run_dir = tmp_path_factory.mktemp("triton")
    events = EventLog(run_dir / "events.jsonl")
    parameters = {"max_seq_len": "4096", "vocab_size": "1000", "engine_log": str(events.path)}
    async with running_triton(MISBEHAVING, run_dir, parameters, models=MODELS) as triton:
        yield Server(triton.grpc_address, triton.http_address, events)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cumulative_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """As ``delta_server``, in the other dialect."""
    run_dir = tmp_path_factory.mktemp("cumulative")
    events = EventLog(run_dir / "events.jsonl")
    parameters = {"fail_to_load": "", "engine_log": str(events.path)}

    def write(folder: Path) -> None:
        shutil.copyfile(MODELS / MISBEHAVING / "model.py", folder / "model.py")

    version = CUMULATIVE_INFO.weight_version
    async with running_as_cpp(run_dir, write, parameters, FACTS, weight_version=version) as triton:
        yield Server(triton.grpc_address, triton.http_address, events, CUMULATIVE_INFO)


@pytest.fixture
def server(delta_server: Server) -> Server:
    """The one that a test file need not choose."""
    return delta_server


@pytest_asyncio.fixture
async def client(server: Server) -> AsyncIterator[TritonClient]:
    async with TritonClient(server.address, server.info, ClientOptions()) as client:
        yield client
