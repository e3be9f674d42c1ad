"""The demo model on a real Triton, through the wire contract, checked against a plain pass of the same weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from engine.client import TritonClient
from engine.contract import MODEL_NAME, WireTensor, encode_request
from engine.errors import EngineError, EngineRejected
from engine.types import EngineInfo, FinishReason, GenerateRequest, LogProbMode, SamplingParams
from tests.model_repo.served import ANSWER_S, Reply, Served, changed, rest_of, scalar
from tests.support.assets import demo_model_dir
from tests.support.connections import connection_to
from tests.support.triton import running_triton

VOCAB = 49152
MAX_SEQ_LEN = 512
IM_END = 2
GREEDY = SamplingParams(temperature=0)


@dataclass
class Server(Served):
    """The shared server, with a client for control requests."""

    client: TritonClient

    async def sample(self, prompt: list[int], max_tokens: int, **more: Any) -> Reply:
        return await self.generate(request_of(prompt, max_tokens, **more))

    async def stats(self) -> dict[str, Any]:
        return await self.client.control("stats")


def request_of(prompt: list[int], max_tokens: int, **more: Any) -> GenerateRequest:
    return GenerateRequest(more.pop("request_id", ""), np.array(prompt, dtype=np.int32), max_tokens, **more)


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    run_dir = tmp_path_factory.mktemp("transformers")
    log_path = run_dir / "engine.jsonl"
    parameters = {"model_dir": str(demo_model_dir()), "max_seq_len": str(MAX_SEQ_LEN), "engine_log": str(log_path)}
    info = EngineInfo(MODEL_NAME, LogProbMode.RAW, MAX_SEQ_LEN, VOCAB, 0)
    async with (
        running_triton("transformers", run_dir, parameters) as triton,
        connection_to(triton.grpc_address) as connection,
        TritonClient(triton.grpc_address, info) as client,
    ):
        yield Server(triton.grpc_address, connection, log_path, client)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(demo_model_dir(), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(demo_model_dir() / "tokenizer.json"))


def chat(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n").ids


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    questions = ["Name three colours.", "What is the capital of France?", "Write a haiku.", "Count to ten.", "Hello!"]
    return [chat(tokenizer, question) for question in questions]


def distribution(model: Any, prompt: list[int], output: list[int]) -> torch.Tensor:
    """log_softmax of a plain pass over the whole sequence, float32 [len(output), V]."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
    return logits.float().log_softmax(-1)


def scored(model: Any, prompt: list[int], output: list[int]) -> list[float]:
    return distribution(model, prompt, output)[range(len(output)), output].tolist()


@pytest.mark.parametrize("sampling", [SamplingParams(seed=5), SamplingParams(temperature=0.7, top_p=0.9, seed=6)])
async def test_log_probs_are_those_of_a_plain_pass(
    server: Server, model: Any, prompts: list[list[int]], sampling: SamplingParams
) -> None:
    prompt = prompts[0]
    reply = await server.sample(prompt, 16, sampling=sampling)
    assert len(reply.ids) == len(reply.log_probs) == 16
    assert reply.log_probs == pytest.approx(scored(model, prompt, reply.ids), abs=1e-3)
    other_prompt = [*prompt[:6], prompt[6] + 1, *prompt[7:]]
    assert reply.log_probs != pytest.approx(scored(model, other_prompt, reply.ids), abs=1e-3)


async def test_a_seed_gives_the_same_ids_in_any_company(server: Server, prompts: list[list[int]]) -> None:
    alone = await server.sample(prompts[0], 16, sampling=SamplingParams(seed=3))
    together = await asyncio.gather(
        *(server.sample(prompt, 16, sampling=SamplingParams(seed=3)) for prompt in prompts),
        server.sample(prompts[0], 16, sampling=SamplingParams(seed=4)),
    )
    assert together[0].ids == alone.ids
    assert together[-1].ids != alone.ids


async def test_greedy_is_the_argmax_however_it_is_asked_for(
    server: Server, model: Any, prompts: list[list[int]]
) -> None:
    spellings = [GREEDY, SamplingParams(top_k=1, seed=8), SamplingParams(top_p=1e-6, seed=9)]
    replies = await asyncio.gather(*(server.sample(prompts[1], 12, sampling=values) for values in spellings))
    best = distribution(model, prompts[1], replies[0].ids).argmax(-1).tolist()
    assert [reply.ids for reply in replies] == [best] * 3


async def test_an_end_token_ends_the_reply_and_is_part_of_it(
    server: Server, model: Any, prompts: list[list[int]]
) -> None:
    request = request_of(prompts[1], 16, sampling=GREEDY)
    words, end_id, unbounded = await asyncio.gather(
        server.sample(prompts[1], 16, sampling=GREEDY, end_ids=(0, IM_END)),
        server.ask(changed(request, scalar("end_id", "INT32", IM_END))),
        server.ask(encode_request(request)),
    )
    assert words.ids == end_id.ids == unbounded.ids[: len(words.ids)]
    assert words.ids[-1] == IM_END
    assert len(words.ids) < 16
    assert (words.finish_reason, end_id.finish_reason, unbounded.finish_reason) == ("stop", "stop", "length")
    assert words.log_probs == pytest.approx(scored(model, prompts[1], words.ids), abs=1e-3)


async def test_min_tokens_holds_the_end_back(server: Server, prompts: list[list[int]]) -> None:
    held = SamplingParams(temperature=0, min_tokens=12)
    free, longer = await asyncio.gather(
        server.sample(prompts[1], 14, sampling=GREEDY, end_ids=(IM_END,)),
        server.sample(prompts[1], 14, sampling=held, end_ids=(IM_END,)),
    )
    end = len(free.ids) - 1
    assert end < 12
    assert longer.ids[:end] == free.ids[:end]
    assert IM_END not in longer.ids[:12]


async def test_a_stop_word_split_over_messages_ends_the_reply_at_its_last_token(
    server: Server, prompts: list[list[int]]
) -> None:
    free = await server.sample(prompts[2], 16, sampling=GREEDY)
    word = tuple(free.ids[5:8])
    reply = await server.sample(prompts[2], 16, sampling=GREEDY, stop_words=(word, (*word[:2], 0)))
    assert reply.ids == free.ids[:8]
    assert reply.finish_reason == "stop"
    assert len(reply.messages) > 1
    assert len(reply.log_probs) == 8


async def test_penalties_are_in_force(server: Server, prompts: list[list[int]]) -> None:
    distinct = SamplingParams(temperature=0, presence_penalty=1000.0)
    plain, penalised = await asyncio.gather(
        server.sample(prompts[3], 16, sampling=GREEDY), server.sample(prompts[3], 16, sampling=distinct)
    )
    assert len(set(plain.ids)) < 16
    assert len(set(penalised.ids)) == 16


async def test_one_response_without_streaming_and_the_prompt_on_request(
    server: Server, prompts: list[list[int]]
) -> None:
    request = request_of(prompts[1], 6, sampling=GREEDY)
    quiet = scalar("streaming", "BOOL", False)
    with_prompt = scalar("exclude_input_in_output", "BOOL", False)
    streamed, whole, prefixed, bare = await asyncio.gather(
        server.ask(encode_request(request)),
        server.ask(changed(request, quiet)),
        server.ask(changed(request, with_prompt)),
        server.ask(changed(request, without=["streaming", "return_log_probs", "seed", "runtime_top_p"]), outputs=()),
    )
    assert len(whole.messages) == len(bare.messages) == 1
    assert whole.ids == streamed.ids
    assert whole.log_probs == pytest.approx(streamed.log_probs, abs=1e-4)
    assert prefixed.ids == prompts[1] + streamed.ids
    assert prefixed.log_probs == pytest.approx(streamed.log_probs, abs=1e-4)
    assert bare.ids == streamed.ids
    assert "output_log_probs" not in bare.messages[0]


async def test_a_repeated_prompt_is_taken_from_the_cache(server: Server, tokenizer: Tokenizer) -> None:
    prompt = chat(tokenizer, "Repeat: " + "alpha beta gamma delta " * 12)
    first = await server.sample(prompt, 3, sampling=GREEDY)
    again = await server.sample(prompt, 3, sampling=GREEDY)
    assert first.cached_tokens < 16
    assert again.cached_tokens == (len(prompt) - 1) // 16 * 16
    assert again.ids == first.ids
    assert again.log_probs == pytest.approx(first.log_probs, abs=1e-4)


def bad_requests(good: GenerateRequest) -> dict[str, list[WireTensor]]:
    """By the tensor that the refusal must name."""
    wide = np.array([[1, 2]], dtype=np.int64)
    return {
        "temperature: nan": changed(good, scalar("temperature", "FP32", np.nan)),
        "temperature: -1": changed(good, scalar("temperature", "FP32", -1.0)),
        "temperature: inf": changed(good, scalar("temperature", "FP32", np.inf)),
        "runtime_top_p: 0": changed(good, scalar("runtime_top_p", "FP32", 0.0)),
        "runtime_top_k: -1": changed(good, scalar("runtime_top_k", "INT32", -1)),
        "repetition_penalty: 0": changed(good, scalar("repetition_penalty", "FP32", 0.0)),
        "presence_penalty: nan": changed(good, scalar("presence_penalty", "FP32", np.nan)),
        "min_tokens: 17": changed(good, scalar("min_tokens", "INT32", 17)),
        "end_id: 49152": changed(good, scalar("end_id", "INT32", VOCAB)),
        "request_output_len: 0": changed(good, scalar("request_output_len", "INT32", 0)),
        "input_lengths: 3": changed(good, scalar("input_lengths", "INT32", 3)),
        "input_ids: id 49152": encode_request(request_of([1, VOCAB], 4)),
        "input_ids: id -1": encode_request(request_of([1, -1], 4)),
        "input_ids: empty": encode_request(request_of([], 4)),
        "input_ids: prompt too long": encode_request(request_of([1] * 500, 20)),
        "input_ids": changed(good, WireTensor("input_ids", "INT64", (1, 2), wide.tobytes())),
        "seed": changed(good, scalar("seed", "INT64", 3)),
    }


async def test_bad_requests_are_refused_and_do_not_touch_the_live_ones(
    server: Server, prompts: list[list[int]]
) -> None:
    values = [SamplingParams(seed=seed, temperature=0.8) for seed in range(3)] + [GREEDY]
    requests = [request_of(prompt, 16, sampling=s) for prompt, s in zip(prompts, values, strict=False)]
    undisturbed = await asyncio.gather(*(server.ask(encode_request(request)) for request in requests))
    disturbed = [asyncio.create_task(server.ask(encode_request(request))) for request in requests]
    bad = bad_requests(requests[0])
    refused = await asyncio.gather(*(server.ask(tensors) for tensors in bad.values()))
    for expected, reply in zip(bad, refused, strict=True):
        assert expected in reply.error
        assert not reply.messages
    replies = [await task for task in disturbed]
    assert [reply.ids for reply in replies] == [reply.ids for reply in undisturbed]
    assert all(reply.finish_reason == "length" for reply in replies)


async def test_the_client_sees_a_refusal_as_one(server: Server) -> None:
    with pytest.raises(EngineRejected, match="prompt too long"):
        async for _ in server.client.generate(request_of([1] * 500, 20, request_id="long")):
            pytest.fail("a chunk came")


async def test_the_stop_tensor_cancels(server: Server, prompts: list[list[int]]) -> None:
    request = request_of(prompts[0], 400, request_id="to-stop")
    async with server.call(encode_request(request), "to-stop") as call:
        first = (await call.read(ANSWER_S)).outputs
        stop = await server.ask(changed(request, scalar("stop", "BOOL", True)), "to-stop")
        rest = await rest_of(call)
    assert (stop.messages, stop.error) == ([{}], "")
    assert rest.finish_reason == "cancelled"
    assert (await server.stats())["running"] == 0
    logged = server.log()["to-stop"]
    assert logged["finish_reason"] == "cancelled"
    assert 0 < len(logged["output_ids"]) < 400
    assert logged["output_ids"] == Reply([first, *rest.messages]).ids


async def test_leaving_the_call_cancels(server: Server, prompts: list[list[int]]) -> None:
    request = request_of(prompts[0], 400, request_id="to-leave")
    async with aclosing(server.client.generate(request)) as chunks:
        await anext(chunks)
    async with asyncio.timeout(ANSWER_S):
        while (await server.stats())["live"]:
            pass
    assert server.log()["to-leave"]["finish_reason"] == "cancelled"
    assert (await server.stats())["running"] == 0


async def test_the_engine_log_is_what_the_client_got(server: Server, prompts: list[list[int]]) -> None:
    sampling = SamplingParams(temperature=0.9, seed=2**64 - 1)
    request = request_of(prompts[4], 8, request_id="logged", sampling=sampling, session="s-1", turn=4)
    chunks = [chunk async for chunk in server.client.generate(request)]
    logged = server.log()["logged"]
    assert logged["prompt_ids"] == prompts[4]
    assert logged["output_ids"] == [token for chunk in chunks for token in chunk.ids.tolist()]
    assert logged["log_probs"] == [value for chunk in chunks for value in chunk.log_probs.tolist()]
    assert (logged["session"], logged["turn"], logged["sampling"]["seed"]) == ("s-1", 4, 2**64 - 1)
    assert chunks[-1].finished is not None
    assert chunks[-1].finished.reason is FinishReason.LENGTH


async def test_new_weights_by_control(server: Server, prompts: list[list[int]]) -> None:
    stats = await server.stats()
    assert (stats["vocab_size"], stats["max_seq_len"], stats["live"]) == (VOCAB, MAX_SEQ_LEN, 0)
    before = await server.sample(prompts[0], 6, sampling=GREEDY)
    with pytest.raises(EngineError, match="holds no"):
        await server.client.control("update_weights", version=7, path=str(server.log_path.parent))
    answer = await server.client.control("update_weights", version=7, path=str(demo_model_dir()))
    assert answer["weight_version"] == 7
    after = await server.sample(prompts[0], 6, sampling=GREEDY)
    assert after.ids == before.ids
    assert after.cached_tokens == 0
    assert set(after.joined("weight_version", np.int32)) == {7}
    assert set(before.joined("weight_version", np.int32)) == {0}
