"""Forced calls and structured output behind a real Triton, over the official SDKs; then both verifications.

The model has the demo model's vocabulary and random weights: what it writes, it writes because the grammar leaves it nothing else.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import numpy as np
import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from adapter.config import Config
from adapter.render.prompt import Renderer
from engine import verify
from engine.client import TritonClient
from engine.errors import EngineRejected
from engine.probe import probe
from engine.replay_turn import replay_turn, targets_of
from engine.sample_rows import read_sample
from engine.types import GenerateRequest, Guide, GuideKind
from tests.support.assets import demo_model_dir
from tests.support.server import TestServer, serving
from tests.support.triton import running_triton

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
OTHER = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"], "additionalProperties": False}
HELLO: Any = [{"role": "user", "content": "How is the weather in Rome?"}]


@dataclass(frozen=True)
class Running:
    engine: TritonClient
    adapter: TestServer
    model_dir: Path

    async def base_url(self, sid: str) -> str:
        """Of a new session."""
        async with self.adapter.http.post("/v1/sessions", json={"sid": sid}) as response:
            return str((await response.json())["base_url"])

    async def samples(self, sid: str) -> list[dict[str, Any]]:
        async with self.adapter.http.post(f"/v1/sessions/{sid}/finish", json={"reward": 1.0}) as response:
            return list((await response.json())["samples"])


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    run_dir = tmp_path_factory.mktemp("guided")
    model_dir = run_dir / "model"
    save_model(model_dir)
    parameters = {"model_dir": str(model_dir), "max_seq_len": "1024"}
    async with running_triton("transformers", run_dir, parameters) as triton:
        async with TritonClient(triton.grpc_address, await probe(triton.grpc_address)) as engine:
            config = Config(served_model_name="m", tool_parser="hermes")
            async with serving(engine, Renderer.load(model_dir), config) as adapter:
                yield Running(engine, adapter, model_dir)


def save_model(folder: Path) -> None:
    """A checkpoint of random weights with the demo model's tokenizer and chat template."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.1,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copyfile(demo_model_dir() / name, folder / name)


def check_trip(trip: Any) -> None:
    assert set(trip) == {"city", "days"}
    assert trip["city"] in ("Paris", "Rome")
    assert 1 <= trip["days"] <= 9


async def forced_over_messages(base_url: str) -> None:
    client = anthropic.AsyncAnthropic(base_url=base_url, api_key="k")
    tools: Any = [{"name": "other", "input_schema": OTHER}, {"name": "trip", "input_schema": SCHEMA}]
    choice: Any = {"type": "tool", "name": "trip", "disable_parallel_tool_use": True}
    async with client.messages.stream(
        model="m", max_tokens=400, messages=HELLO, tools=tools, tool_choice=choice
    ) as stream:
        reply = await stream.get_final_message()
    await client.close()
    (use,) = reply.content
    assert (use.type, use.name, reply.stop_reason) == ("tool_use", "trip", "tool_use")
    check_trip(use.input)


async def json_over_chat(base_url: str) -> None:
    client = openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="k")
    form: Any = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA, "strict": True}}
    reply = await client.chat.completions.create(
        model="m", max_tokens=400, messages=HELLO, response_format=form, temperature=0.8, top_p=0.9
    )
    await client.close()
    assert reply.choices[0].finish_reason == "stop"
    check_trip(json.loads(reply.choices[0].message.content or ""))


async def forced_over_responses(base_url: str) -> None:
    client = openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="k")
    tools: Any = [{"type": "function", "name": "trip", "parameters": SCHEMA, "strict": True}]
    reply = await client.responses.create(
        model="m", max_output_tokens=400, input=HELLO, tools=tools, tool_choice="required", parallel_tool_calls=False
    )
    await client.close()
    (call,) = reply.output
    assert call.type == "function_call" and call.name == "trip"
    check_trip(json.loads(call.arguments))


async def test_over_every_sdk_and_both_verifications_agree(running: Running) -> None:
    """Together, so that guided requests of several grammars share the batch."""
    agents = [forced_over_messages, json_over_chat, forced_over_responses]
    sids = [agent.__name__ for agent in agents]
    urls = [await running.base_url(sid) for sid in sids]
    await asyncio.gather(*(agent(url) for agent, url in zip(agents, urls, strict=True)))
    samples = [sample for sid in sids for sample in await running.samples(sid)]
    turns = [turn for sample in samples for turn in sample["metadata"]["turns"]]
    assert [turn["guide"]["kind"] for turn in turns] == ["lark", "json_schema", "lark"]
    report = await asyncio.to_thread(verify.verify_samples, samples, running.model_dir)
    assert report.failures == ()
    assert report.max_difference < 1e-3
    assert (report.unscored_tokens, report.modes) == (0, {"raw": report.trained_tokens})
    (target,) = targets_of(1, read_sample(samples[1], running.engine.info.vocab_size))
    assert (await replay_turn(running.engine, target, 0)).is_same


async def test_the_probe_read_what_the_model_offers(running: Running) -> None:
    assert running.engine.info.guides == {GuideKind.JSON, GuideKind.JSON_SCHEMA, GuideKind.LARK, GuideKind.REGEX}


async def test_a_grammar_that_is_none_is_refused_by_the_model_too(running: Running) -> None:
    prompt = np.array([1, 2, 3], np.int32)
    request = GenerateRequest("bad-guide", prompt, 8, guide=Guide(GuideKind.LARK, "start: nowhere"))
    with pytest.raises(EngineRejected, match=r"^guided_decoding_guide: .*nowhere"):
        async for _ in running.engine.generate(request):
            pytest.fail("a chunk came")
    # Its id is free again, and the model goes on.
    request = GenerateRequest("bad-guide", prompt, 8, guide=Guide(GuideKind.REGEX, "ab"))
    chunks = [chunk async for chunk in running.engine.generate(request)]
    assert sum(chunk.ids.size for chunk in chunks) in (1, 2)
