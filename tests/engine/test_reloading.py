"""New weights by loading the model again, over a real tritonserver: the stand-in of the C++ model, loaded on demand."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest
from google.protobuf import json_format

from engine.channel import messages
from engine.client import TritonClient
from engine.contract import MODEL_NAME
from engine.errors import EngineFailed, EngineRejected
from engine.identity import identity_of
from engine.probe import probe
from engine.reloading import Reloading
from engine.types import GenerateRequest
from engine.weights import Weights
from tests.support.cpp_stand_in import FACTS, running_cpp_stand_in

FIRST, SECOND = "/engines/1", "/engines/2"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[TritonClient]:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"default": {"ids": [5, 6, 7]}}))
    async with running_cpp_stand_in(tmp_path, {"script": str(script)}, explicit=(MODEL_NAME,)) as triton:
        async with TritonClient(triton.grpc_address, await probe(triton.grpc_address)) as client:
            yield client


async def versions(client: TritonClient) -> set[int]:
    asked = GenerateRequest("r", np.arange(4, dtype=np.int32), 3)
    async with aclosing(client.generate(asked)) as stream:
        return {chunk.weight_version async for chunk in stream}


async def test_the_model_is_loaded_again_from_another_folder(client: TritonClient) -> None:
    assert await versions(client) == {0}
    updated = {"op": "update_weights", "weight_version": 1, "path": FIRST}
    before = identity_of(await client.control("stats"))
    assert await client.control("update_weights", version=1, path=FIRST) == updated
    assert identity_of(await client.control("stats")) == before
    assert await versions(client) == {1}
    assert await client.control("update_weights", version=1, path=FIRST) == updated
    with pytest.raises(EngineRejected, match="version 1 are the weights of /engines/1; give others another"):
        await client.control("update_weights", version=1, path=SECOND)
    stats = await client.control("stats")
    assert (stats["weight_version"], stats["path"], stats["vocab_size"]) == (1, FIRST, FACTS.vocab_size)
    assert (await client.control("update_weights", version=2))["path"] == FIRST
    async with TritonClient(client.address, await probe(client.address)) as other:
        assert other.info.weight_version == 2
        await client.control("update_weights", version=3, path=SECOND)
        assert (await other.control("stats"))["weight_version"] == 3
        assert await versions(other) == {3}


async def test_where_it_cannot_be_loaded_the_old_one_comes_back(client: TritonClient, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    good = script.read_text()
    script.write_text("{")
    with pytest.raises(EngineFailed, match="and the old weights cannot be loaded again"):
        await client.control("update_weights", version=1, path=FIRST)
    script.write_text(good)
    await client.control("update_weights", version=1, path=FIRST)
    assert await versions(client) == {1}


class Server:
    """Triton's model repository, as far as a reload needs it. ``bad`` is a folder that cannot be loaded."""

    def __init__(self, bad: str) -> None:
        self.config = json_format.Parse(CONFIG, messages.ModelConfigResponse()).config
        self.bad = bad
        self.calls: list[str] = []

    async def ModelConfig(self, request: Any, **options: float) -> Any:
        return messages.ModelConfigResponse(config=self.config)

    async def RepositoryModelUnload(self, request: Any, **options: float) -> None:
        self.calls.append("unload")

    async def RepositoryModelLoad(self, request: Any, **options: float) -> None:
        wanted = json_format.Parse(request.parameters["config"].string_param, type(self.config)())
        folder = wanted.parameters["gpt_model_path"].string_value
        self.calls.append(folder)
        if folder == self.bad:
            metadata = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, metadata, metadata, "no engine in it")
        self.config = wanted


CONFIG = """{"config": {"name": "tensorrt_llm", "parameters": {
    "gpt_model_path": {"string_value": "/engines/1"}, "weight_version": {"string_value": "1"}}}}"""


async def test_the_old_engine_is_loaded_again_where_the_new_one_cannot_be() -> None:
    server = Server(bad=SECOND)
    reloading = Reloading(server, "somewhere:1", "tensorrt_llm", 5)
    with pytest.raises(EngineFailed, match=r"no engine in it; the old weights were loaded again"):
        await reloading.update(Weights(2, SECOND))
    assert server.calls == ["unload", SECOND, FIRST]
    assert await reloading.weights() == Weights(1, FIRST)
