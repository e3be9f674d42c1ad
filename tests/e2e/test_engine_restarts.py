"""An engine that is killed and back within an instant, over real processes: with other weights, with another vocabulary, and right
again. What comes back is tried before a turn is served from it; what cannot be served is refused with the reason.

The tritonserver is ours, which starts it again at once, on the same ports, with whatever its repository holds by then.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from adapter.config import Config
from adapter.journaling import prepared
from adapter.serving import adapter_server, load_models
from engine.client import TritonClient
from engine.errors import EngineError, LaunchFailed
from engine.launch import EmbeddedTriton
from engine.pool import Pool, PoolOptions
from engine.probe import probe
from engine.repository import render_repository
from engine.types import GenerateRequest
from tests.engine.fake_endpoints import Reading, ids_of
from tests.support.assets import tokenizer_dir
from tests.support.cpp_stand_in import running_cpp_stand_in
from tests.support.triton import running_triton
from tests.support.wait import LIMIT_S, until

SCRIPT = {"rules": [{"weight_version": 1, "ids": [11, 12], "end": True}], "default": {"ids": [21, 22], "end": True}}
END = 151645
"""``<|im_end|>``."""


@dataclass(frozen=True)
class Restarted:
    """The adapter, and the engine behind it; ``render`` writes the engine's repository with some parameters changed."""

    http: aiohttp.ClientSession
    triton: EmbeddedTriton
    render: Callable[..., None]

    async def restart(self, **parameters: str) -> None:
        self.render(**parameters)
        await restarted(self.triton)

    async def ask(self) -> tuple[int, Any]:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
        async with self.http.post("/v1/messages", json=body, headers={"session-id": "one"}) as response:
            return response.status, await response.json()

    async def served(self) -> None:
        """A turn, asked for until there is a reply, as a client library does."""
        async with asyncio.timeout(LIMIT_S):
            while (answer := await self.ask())[0] != 200:
                assert answer[0] == 503, answer
                await asyncio.sleep(0.01)

    async def refused(self, words: str) -> None:
        """Turns are refused, by and by for this reason."""
        async with asyncio.timeout(LIMIT_S):
            while words not in (answer := await self.ask())[1].get("error", {}).get("message", ""):
                assert answer[0] == 503, answer
                await asyncio.sleep(0.01)
        async with self.http.get("/readyz") as response:
            assert response.status == 503
            assert words in (await response.json())["reason"]

    async def turns(self) -> int:
        async with self.http.get("/v1/sessions/one") as response:
            return int((await response.json())["turn_count"])

    async def trained(self) -> list[tuple[list[int], list[str]]]:
        """Of each sample of the session the ids that train and whose weights sampled them."""
        async with self.http.post("/v1/sessions/one/finish") as response:
            samples = (await response.json())["samples"]
        return [(_trained_ids(sample), sample["weight_versions"]) for sample in samples]


def _trained_ids(sample: dict[str, Any]) -> list[int]:
    output = sample["tokens"][-sample["response_length"] :]
    return [token for token, trains in zip(output, sample["loss_mask"], strict=True) if trains]


async def restarted(triton: EmbeddedTriton) -> None:
    """Killed, and ready again."""
    before = triton.pid
    os.killpg(before, signal.SIGKILL)

    def is_another() -> bool:
        try:
            return triton.pid != before
        except LaunchFailed:
            return False

    await until(is_another)


@asynccontextmanager
async def restartable(folder: Path) -> AsyncIterator[Restarted]:
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    right = {"script": str(script), "max_seq_len": "4096", "vocab_size": "151936", "weight_version": "1"}

    def render(**parameters: str) -> None:
        render_repository("scripted", folder / "repository", right | parameters)

    config = Config(port=0, tokenizer=tokenizer_dir("qwen2_5"), journal=folder / "journal", connect_timeout_s=0.5)
    async with running_triton("scripted", folder, right) as triton:
        with prepared(config):
            async with (
                adapter_server(load_models(config, print), triton.grpc_address) as server,
                aiohttp.ClientSession(server.url) as http,
            ):
                yield Restarted(http, triton, render)


async def test_an_engine_that_comes_back_as_another_is_tried_before_it_is_used(tmp_path: Path) -> None:
    async with restartable(tmp_path) as engine:
        await engine.served()
        await engine.restart(weight_version="2", max_seq_len="64")
        await engine.served()
        await engine.restart(weight_version="2", vocab_size="152064")
        await engine.refused("its vocabulary is 152064, not 151936")
        assert await engine.turns() == 2
        await engine.restart(weight_version="3")
        await engine.served()
        trained = await engine.trained()
    assert sorted(trained) == [([11, 12, END], ["1"]), ([21, 22, END], ["2"]), ([21, 22, END], ["3"])]


async def test_one_that_does_not_say_which_start_answers_is_tried_after_a_lost_connection(tmp_path: Path) -> None:
    """TensorRT-LLM's C++ dialect. No check is due: what is noticed is noticed by the connection."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"default": {"ids": [5, 6, 7]}}))
    trials = []

    async def open_client(address: str) -> TritonClient:
        info = await probe(address)
        trials.append(info.weight_version)
        return TritonClient(address, info)

    async with running_cpp_stand_in(tmp_path, {"script": str(script)}) as triton:
        async with Pool([triton.grpc_address], open_client, PoolOptions(check_interval_s=3600)) as pool:
            assert await sampled(pool) == ([5, 6, 7], {0})
            configuration = tmp_path / "repository" / "tensorrt_llm" / "config.pbtxt"
            configuration.write_text(with_version(configuration.read_text(), 9))
            await restarted(triton)
            assert await sampled(pool) == ([5, 6, 7], {9})
    assert trials == [0, 9]


async def sampled(pool: Pool) -> tuple[list[int], set[int]]:
    """A generation's ids and weight versions, asked for until there is an engine."""
    asked = GenerateRequest("r", np.arange(4, dtype=np.int32), 3)
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                chunks = await Reading(pool, asked).task
            except EngineError:
                await asyncio.sleep(0.01)
            else:
                return ids_of(chunks), {chunk.weight_version for chunk in chunks}


def with_version(configuration: str, version: int) -> str:
    """The text of a ``config.pbtxt`` with another ``weight_version``."""
    before, name, rest = configuration.partition('key: "weight_version"')
    assert name
    return before + name + rest.replace('string_value: "0"', f'string_value: "{version}"', 1)
