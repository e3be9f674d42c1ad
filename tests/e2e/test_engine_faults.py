"""Faults of the engine, one by one, over real processes: a clear error in the protocol's shape or a reply that is whole, nothing
of a fault in the record, and the session goes on.

The model breaks its contract in the way that the session's name says (``tests/engine/models/misbehaving``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from adapter.config import Config
from adapter.journaling import prepared
from adapter.serving import adapter_server, load_models
from tests.engine.fake_triton import answer as triton_answer
from tests.engine.fake_triton import fake_triton, serving_all
from tests.engine.misbehaving import MISBEHAVING, MODELS
from tests.support.assets import tokenizer_dir
from tests.support.ports import free_ports
from tests.support.sse import events_of
from tests.support.triton import running_triton
from tests.support.wait import LIMIT_S

PARAMETERS = {"max_seq_len": "4096", "vocab_size": "1000", "engine_log": ""}
LYING = (
    "wrong_count",
    "wrong_length",
    "nan",
    "infinite",
    "positive",
    "no_log_probs",
    "lost_log_probs",
    "negative",
    "outside_vocabulary",
    "too_many",
    "unknown_reason",
    "cached_too_many",
    "no_weight_version",
)
SILENT = ("silent", "stall")


@dataclass(frozen=True)
class Served:
    http: aiohttp.ClientSession

    async def ask(self, sid: str, *, stream: bool) -> tuple[int, Any]:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "stream": stream}
        async with self.http.post("/v1/messages", json=body, headers={"session-id": sid}) as response:
            raw = b""
            with suppress(aiohttp.ClientPayloadError):  # a stream that failed is broken off behind its error
                async for part in response.content.iter_any():
                    raw += part
            if response.content_type == "text/event-stream":
                return response.status, events_of(raw)
            return response.status, json.loads(raw)

    async def turns(self, sid: str) -> int:
        async with self.http.get(f"/v1/sessions/{sid}") as response:
            return int((await response.json())["turn_count"])

    async def samples(self, sid: str) -> tuple[list[Any], dict[str, Any]]:
        async with self.http.post(f"/v1/sessions/{sid}/finish") as response:
            document = await response.json()
            return document["samples"], document["ledger"]


def configured(folder: Path, **settings: Any) -> Config:
    return Config(
        port=0,
        tokenizer=tokenizer_dir("qwen2_5"),
        journal=folder / "journal",
        end_token=("!",),  # of a low id: the model has 1000 tokens
        first_token_timeout_s=1.0,
        inactivity_timeout_s=1.0,
        failover_wait_s=1.0,
        **settings,
    )


@asynccontextmanager
async def serving_from(config: Config, address: str) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of an adapter in front of the engine at ``address``."""
    with prepared(config):
        async with (
            adapter_server(load_models(config, print), address) as server,
            aiohttp.ClientSession(server.url) as http,
        ):
            yield http


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    folder = tmp_path_factory.mktemp("faults")
    async with running_triton(MISBEHAVING, folder, PARAMETERS, models=MODELS) as triton:
        async with serving_from(configured(folder), triton.grpc_address) as http:
            yield Served(http)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("behaviour", [*LYING, *SILENT])
async def test_what_cannot_be_is_an_error_and_leaves_no_turn(served: Served, behaviour: str, stream: bool) -> None:
    status, answer = await served.ask(behaviour, stream=stream)
    if status == 200:
        assert stream
        names = [name for name, _ in answer]
        assert names[-1] == "error", names
        assert "message_stop" not in names
    else:
        assert status in (502, 503, 504), answer
        assert answer["type"] == "error"
        assert answer["error"]["message"]
    assert await served.turns(behaviour) == 0
    assert (await served.ask("good", stream=stream))[0] == 200


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_slow_engine_is_waited_for(served: Served, stream: bool) -> None:
    """Each token comes in time, all of them take longer than any deadline."""
    status, answer = await served.ask("slow", stream=stream)
    assert status == 200
    assert not stream or [name for name, _ in answer][-1] == "message_stop"
    async with served.http.get("/v1/sessions/slow/explain") as response:
        turn = (await response.json())["turns"][-1]
    assert len(turn["segments"]) == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_reply_that_breaks_off_goes_on(served: Served, stream: bool) -> None:
    """Two tokens, then an end without a reason; twice that is the reply."""
    async with served.http.post("/v1/sessions", json={"sid": "cut"}) as response:
        assert response.status in (201, 409)
    before = 0 if response.status == 201 else await served.turns("cut")
    status, answer = await served.ask("cut", stream=stream)
    assert status == 200
    assert not stream or [name for name, _ in answer][-1] == "message_stop"
    assert await served.turns("cut") == before + 1
    async with served.http.get("/v1/sessions/cut/explain") as response:
        turn = (await response.json())["turns"][-1]
    assert len(turn["segments"]) == 2


async def test_log_probs_that_are_none_are_not_trained(served: Served) -> None:
    """All zero over many tokens at temperature 1: the reply is the client's, its tokens are context."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}
    async with served.http.post("/v1/messages", json=body, headers={"session-id": "all_zero"}) as response:
        assert response.status == 200
    samples, ledger = await served.samples("all_zero")
    assert samples == []
    assert ledger["dropped"] == {"suspect_logprobs": 20}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_answer_to_another_request_is_no_answer(tmp_path: Path, stream: bool) -> None:
    """A real Triton cannot be made to send it."""

    async def astray(message: Any, context: Any) -> AsyncIterator[Any]:
        message.id = "another"
        yield triton_answer(message, [0], final=True)

    async with fake_triton(serving_all(astray)) as address, serving_from(configured(tmp_path), address) as http:
        served = Served(http)
        status, answer = await served.ask("astray", stream=stream)
        assert (status, answer["type"]) == (502, "error")
        assert "names the request 'another'" in answer["error"]["message"]
        assert await served.turns("astray") == 0


async def test_an_engine_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    """The server starts, says why it is not ready, refuses turns with a time to come back, and serves once the engine is there."""
    (port,) = free_ports(1)
    config = configured(tmp_path, connect_timeout_s=0.5)
    async with serving_from(config, f"127.0.0.1:{port}") as http:
        async with http.get("/readyz") as response:
            assert response.status == 503
            assert f"127.0.0.1:{port}" in (await response.json())["reason"]
        async with http.post("/v1/messages", json={"messages": [{"role": "user", "content": "hi"}]}) as response:
            assert response.status == 503
            assert float(response.headers["Retry-After"]) >= 1
        async with running_triton(MISBEHAVING, tmp_path, PARAMETERS, models=MODELS, grpc_port=port):
            async with asyncio.timeout(LIMIT_S):
                while not await is_ready(http):  # noqa: ASYNC110 (the state of a server)
                    await asyncio.sleep(0.01)
            assert (await Served(http).ask("late", stream=True))[0] == 200


async def is_ready(http: aiohttp.ClientSession) -> bool:
    async with http.get("/readyz") as response:
        return response.status == 200
