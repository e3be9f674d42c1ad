"""Three real tritonservers behind one adapter: a session's turns find their KV cache, and the sessions are spread over all."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from adapter.config import Config
from adapter.journaling import prepared
from adapter.serving import adapter_server, load_models
from tests.support.assets import tokenizer_dir
from tests.support.triton import running_triton

REPLICAS, SESSIONS, TURNS = 3, 9, 20
BLOCK = 16
LEAST_REUSED = 0.9
SCRIPT = {
    "timing": {"block_size": BLOCK, "time_per_output_token_ms": 1},
    "default": {"text": "An answer that is some words long, so that there is something to find again.", "end": True},
}


async def test_a_session_finds_its_kv_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = tokenizer_dir("qwen2_5")
    (tmp_path / "script.json").write_text(json.dumps(SCRIPT))
    async with AsyncExitStack() as stack:
        addresses = []
        for number in range(REPLICAS):
            folder = tmp_path / str(number)
            parameters = {
                "script": str(tmp_path / "script.json"),
                "tokenizer_dir": str(tokenizer),
                "engine_log": str(tmp_path / f"engine-{number}.jsonl"),
            }
            triton = await stack.enter_async_context(running_triton("scripted", folder, parameters))
            addresses.append(triton.grpc_address)
        config = Config(port=0, tokenizer=tokenizer, journal=tmp_path / "journal", triton=tuple(addresses))
        stack.enter_context(prepared(config))
        server = await stack.enter_async_context(adapter_server(load_models(config, print), addresses))
        http = await stack.enter_async_context(aiohttp.ClientSession(server.url))
        async with http.get("/readyz") as response:
            ready = await response.json()
        assert [endpoint["address"] for endpoint in ready["endpoints"]] == addresses
        assert all(endpoint["healthy"] for endpoint in ready["endpoints"])
        await asyncio.gather(*(agent(http, f"session-{number}") for number in range(SESSIONS)))
    logs = [read_log(tmp_path / f"engine-{number}.jsonl") for number in range(REPLICAS)]
    assert all(logs), "a replica had nothing to do"
    for number in range(SESSIONS):
        homes = Counter(
            index for index, log in enumerate(logs) for turn in log if turn["session"] == f"session-{number}"
        )
        assert list(homes.values()) == [TURNS], f"session-{number} was at {homes}"
    cached, reusable = reuse(logs)
    with capsys.disabled():
        print(f"\n{cached} of {reusable} reusable tokens came from the KV cache: {cached / reusable:.1%}")
    assert cached > LEAST_REUSED * reusable


async def agent(http: aiohttp.ClientSession, sid: str) -> None:
    """``TURNS`` turns of one conversation."""
    async with http.post("/v1/sessions", json={"sid": sid}) as response:
        assert response.status == 201
    history: list[dict[str, Any]] = []
    for turn in range(TURNS):
        history.append({"role": "user", "content": f"Question {turn} of {sid}, at some length for the prompt to grow."})
        body = {"model": "rollserve", "max_tokens": 64, "messages": history}
        async with http.post(f"/s/{sid}/v1/messages", json=body) as response:
            reply = await response.json()
            assert response.status == 200, reply
        history.append({"role": "assistant", "content": reply["content"]})


def read_log(path: Path) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return [entry for entry in entries if entry["session"] != "rollserve-probe"]


def reuse(logs: list[list[dict[str, Any]]]) -> tuple[int, int]:
    """Prompt tokens that came from a cache, and those that some replica had seen in the session's turn before."""
    turns = sorted((turn for log in logs for turn in log), key=lambda turn: (turn["session"], turn["turn"]))
    cached = reusable = 0
    for before, turn in itertools.pairwise(turns):
        if before["session"] == turn["session"]:
            known = before["prompt_ids"] + before["output_ids"]
            assert turn["prompt_ids"][: len(known)] == known
            reusable += len(known)
            cached += turn["cached_tokens"]
    return cached, reusable
