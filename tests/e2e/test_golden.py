"""The seed's golden case over HTTP: Qwen2.5's tokenizer and template, no parsers, the scripted model on a real Triton.

Variant 1 is a plain reply, variant 2 a reply that the XML fallback reads as a tool call. ``tests/golden/seed`` is the seed's data.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.ids import FixedIds
from tests.support.scripted import ScriptedServer, dialects, scripted_server

GOLDEN = Path(__file__).parent.parent / "golden" / "seed"
OUTPUT_IDS = [105464, 100134, 73345, 1773, 151645]
LOG_PROBS = [-0.12, -0.08, -0.06, -0.03, -0.01]
CALL_TEXT = "我先读取文件。<tool_call><function=read_file><parameter=path>README.md</parameter></function></tool_call>"
CALL = {"type": "function", "function": {"name": "read_file", "arguments": {"path": "README.md"}}}

SCRIPT = {
    "rules": [
        {"session": "demo-session", "ids": OUTPUT_IDS, "log_probs": LOG_PROBS},
        {"session": "call-session", "text": CALL_TEXT},
    ],
    "default": {"text": "ok"},
}


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(params=dialects(), ids=str)
async def server(tmp_path: Path, request: pytest.FixtureRequest):
    settings = {"served_model_name": "slime-actor", "tool_parser": "none", "reasoning_parser": "none"}
    async with scripted_server(tmp_path, SCRIPT, ids=FixedIds(), dialect=request.param, **settings) as server:
        yield server


async def ask(server: ScriptedServer, sid: str) -> dict[str, Any]:
    async with server.http.post("/v1/messages", json=golden("request"), headers={"x-api-key": sid}) as response:
        assert (response.status, response.content_type) == (200, "application/json")
        return await response.json()


async def view(server: ScriptedServer, sid: str) -> dict[str, Any]:
    async with server.http.get(f"/v1/sessions/{sid}") as response:
        return await response.json()


async def test_the_reply_and_the_record_are_the_seeds(server: ScriptedServer) -> None:
    async with server.http.post("/v1/sessions", json={"sid": "demo-session"}) as response:
        assert response.status == 201
    before = await view(server, "demo-session")
    assert (before["has_session"], before["turn_count"], before["paths"]) == (False, 0, [])

    assert await ask(server, "demo-session") == golden("reply")

    after = await view(server, "demo-session")
    seed = golden("session")
    assert {name: after[name] for name in seed} == seed
    assert after["in_flight"] == 0
    (entry,) = server.logged()
    assert entry["prompt_ids"] == golden("prompt_ids")
    assert entry["output_ids"] == OUTPUT_IDS
    async with server.http.post("/v1/sessions/demo-session/finish", json={"reward": 1.0}) as response:
        (sample,) = (await response.json())["samples"]
    assert sample["tokens"] == [*golden("prompt_ids"), *OUTPUT_IDS]
    assert sample["loss_mask"] == [1] * 5
    assert sample["rollout_log_probs"] == pytest.approx(LOG_PROBS)
    assert sample["response"] == "这是一个学习项目。<|im_end|>"


async def test_the_tool_call_variant_is_the_seeds(server: ScriptedServer) -> None:
    reply = await ask(server, "call-session")
    assert reply["content"] == [
        {"type": "text", "text": "我先读取文件。"},
        {"type": "tool_use", "id": "toolu_aaaaaaaaaaaaaaaa", "name": "read_file", "input": {"path": "README.md"}},
    ]
    assert reply["stop_reason"] == "tool_use"
    last = (await view(server, "call-session"))["paths"][0][-1]
    assert last["message"] == {"role": "assistant", "content": "我先读取文件。", "tool_calls": [CALL]}
    assert (last["has_generation_record"], last["turn_index"]) == (True, 1)
