"""The model over TensorRT-LLM in a real tritonserver, with the stand-in for the LLM API in the place of the GPU library."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.client import TritonClient
from engine.errors import EngineError, EngineRejected, LaunchFailed
from engine.probe import probe
from engine.types import EngineInfo, FinishReason, GenerateRequest, Guide, GuideKind, LogProbMode, SamplingParams
from tests.model_repo.llm_engines import MAX_SEQ_LEN, VOCAB, raw_log_probs
from tests.model_repo.served import Reply, Served, encode_request, rest_of, scalar
from tests.support.connections import connection_to
from tests.support.llm_api_stand_in import NEW, OLD, installed, server_models
from tests.support.triton import running_triton

PROMPT = [5, 6, 7, 8]
GREEDY = SamplingParams(temperature=0)


@dataclass
class Server(Served):
    """The shared server, with a client for control requests and the stand-in's own module of its model."""

    client: TritonClient
    info: EngineInfo
    stand_in: Any
    model_dir: Path

    async def sample(self, max_tokens: int = 20, prompt: list[int] = PROMPT, **more: Any) -> Reply:
        return await self.generate(request_of(max_tokens, prompt, **more))


def request_of(max_tokens: int, prompt: list[int] = PROMPT, **more: Any) -> GenerateRequest:
    return GenerateRequest(more.pop("request_id", ""), np.array(prompt, dtype=np.int32), max_tokens, **more)


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    run_dir = tmp_path_factory.mktemp("tensorrt-llm")
    log_path = run_dir / "engine.jsonl"
    with installed(NEW):
        stand_in = sys.modules["stand_in_network"]
    model_dir = stand_in.write_checkpoint(run_dir / "model", seed=1, vocab_size=VOCAB, max_seq_len=MAX_SEQ_LEN)
    adapter = stand_in.write_adapter(run_dir / "adapter", seed=3, vocab_size=VOCAB)
    settings = run_dir / "engine.yaml"
    settings.write_text("kv_cache_config:\n  tokens_per_block: 16\ncuda_graph_config: {}\n")
    parameters = {
        "model_dir": str(model_dir),
        "engine_yaml": str(settings),
        "engine_log": str(log_path),
        "loras": f"fine={adapter}",
    }
    async with running_triton(
        "tensorrt_llm", run_dir, parameters, models=server_models(NEW, run_dir / "models")
    ) as triton:
        info = await probe(triton.grpc_address)
        async with (
            connection_to(triton.grpc_address) as connection,
            TritonClient(triton.grpc_address, info) as client,
        ):
            yield Server(triton.grpc_address, connection, log_path, client, info, stand_in, model_dir)


async def test_the_probe_finds_what_the_model_offers(server: Server) -> None:
    info = server.info
    assert (info.log_prob_mode, info.max_seq_len, info.vocab_size) == (LogProbMode.RAW, MAX_SEQ_LEN, VOCAB)
    assert (info.guides, info.loras) == (frozenset(), frozenset({"fine"}))


async def test_tokens_log_probs_and_the_engine_log(server: Server) -> None:
    sampling = SamplingParams(temperature=0.8, top_p=0.9, top_k=30, seed=7)
    reply = await server.sample(40, sampling=sampling, request_id="logged", session="s", turn=2)
    network = server.stand_in.Network(server.model_dir)
    assert reply.finish_reason == "length" and len(reply.ids) == 40
    assert reply.log_probs == pytest.approx(raw_log_probs(network, PROMPT, reply.ids), abs=1e-5)
    entry = server.log()["logged"]
    assert (entry["prompt_ids"], entry["output_ids"], entry["session"], entry["turn"]) == (PROMPT, reply.ids, "s", 2)
    assert (entry["sampling"]["seed"], entry["finish_reason"], entry["log_probs"]) == (7, "length", reply.log_probs)


async def test_stop_words_and_end_tokens_stay_in_the_output(server: Server) -> None:
    ids = (await server.sample(sampling=GREEDY)).ids
    by_word = await server.sample(sampling=GREEDY, stop_words=((ids[2], ids[3]),))
    by_token = await server.sample(sampling=GREEDY, end_ids=(ids[3],))
    cut = ids.index(ids[3]) + 1
    assert (by_word.ids, by_word.finish_reason, len(by_word.log_probs)) == (ids[:4], "stop", 4)
    assert (by_token.ids, by_token.finish_reason, len(by_token.log_probs)) == (ids[:cut], "stop", cut)


async def test_seeds_and_the_coalescing_window(server: Server) -> None:
    replies = [await server.sample(60, sampling=SamplingParams(seed=seed)) for seed in (1, 1, 2)]
    assert replies[0].ids == replies[1].ids != replies[2].ids
    assert len(replies[0].ids_by_message[0]) == 1 and len(replies[0].messages) < 60


async def test_a_stop_request_cancels(server: Server) -> None:
    request = request_of(240, request_id="cancelled", sampling=SamplingParams(min_tokens=240))
    async with server.call(encode_request(request), "cancelled") as call:
        first = await call.read(60.0)
        await server.ask([*encode_request(request_of(1)), scalar("stop", "BOOL", True)], "cancelled", ())
        rest = await rest_of(call)
    assert first is not None
    entry = server.log()["cancelled"]
    assert rest.finish_reason == entry["finish_reason"]
    assert rest.finish_reason == "cancelled" or len(entry["output_ids"]) == 240  # it was faster than the stop


async def test_what_the_engine_cannot_do_is_refused_by_name(server: Server) -> None:
    guided = await server.sample(guide=Guide(GuideKind.REGEX, "a+"))
    penalised = await server.sample(sampling=SamplingParams(presence_penalty=0.5))
    assert guided.error.startswith("guided_decoding_guide_type: 'regex' is not offered by this model")
    assert penalised.error.startswith("presence_penalty: TensorRT-LLM takes raw log probs after it")


async def test_an_adapter_is_another_model(server: Server) -> None:
    plain, fine = await server.sample(sampling=GREEDY), await server.sample(sampling=GREEDY, lora="fine")
    assert plain.log_probs[0] != fine.log_probs[0]


async def test_flush_and_new_weights(server: Server, tmp_path: Path) -> None:
    prompt = list(range(48))
    await server.sample(prompt=prompt, sampling=GREEDY)
    assert (await server.sample(prompt=prompt, sampling=GREEDY)).cached_tokens == 32
    assert (await server.client.control("flush"))["op"] == "flush"
    assert (await server.sample(prompt=prompt, sampling=GREEDY)).cached_tokens == 0
    server.stand_in.write_weights(tmp_path / "model.safetensors", seed=2, vocab_size=VOCAB)
    with pytest.raises(EngineError, match="cannot be read as safetensors"):
        await server.client.control("update_weights", version=4, path="/nowhere")
    answer = await server.client.control("update_weights", version=4, path=str(tmp_path))
    assert (answer["weight_version"], answer["path"]) == (4, str(tmp_path))
    async with aclosing(server.client.generate(request_of(20, sampling=GREEDY))) as stream:
        chunks = [chunk async for chunk in stream]
    ids = [int(token) for chunk in chunks for token in chunk.ids]
    new = raw_log_probs(server.stand_in.Network(tmp_path), PROMPT, ids)
    assert np.concatenate([chunk.log_probs for chunk in chunks]) == pytest.approx(new, abs=1e-5)
    assert {chunk.weight_version for chunk in chunks} == {4}
    assert chunks[-1].finished is not None and chunks[-1].finished.reason is FinishReason.LENGTH
    stats = await server.client.control("stats")
    assert (stats["weight_version"], stats["path"], stats["live"]) == (4, str(tmp_path), 0)
    assert (stats["tensorrt_llm"], stats["weight_update"]) == ("1.4.0rc4", "reload")
    back = await server.client.control("update_weights", version=0, path=str(server.model_dir))
    assert back["weight_version"] == 0


async def test_a_setting_that_the_engine_refuses_fails_the_start_with_its_words(server: Server, tmp_path: Path) -> None:
    settings = tmp_path / "engine.yaml"
    settings.write_text("no_such_key: 1\n")
    parameters = {"model_dir": str(server.model_dir), "engine_yaml": str(settings)}
    with pytest.raises(LaunchFailed, match="got invalid argument: no_such_key"):
        async with running_triton(
            "tensorrt_llm", tmp_path / "run", parameters, models=server_models(OLD, tmp_path / "models")
        ):
            pass


async def test_a_prompt_beyond_the_limit_is_refused(server: Server) -> None:
    with pytest.raises(EngineRejected):
        async with aclosing(server.client.generate(request_of(MAX_SEQ_LEN))) as stream:
            await anext(stream)
