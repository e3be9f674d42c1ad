"""TensorRT-LLM's C++ dialect: what is sent, how its answers are read, and its stand-in in a real tritonserver."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from engine.call import infer_request, open_call
from engine.client import TritonClient
from engine.contract import WireTensor
from engine.cumulative import CumulativeReader, encode, wanted_outputs
from engine.errors import EngineFailed, EngineProtocolError, EngineRejected
from engine.probe import probe
from engine.types import (
    Dialect,
    EngineInfo,
    FinishReason,
    GenerateRequest,
    LogProbMode,
    SamplingParams,
    TokenChunk,
)
from tests.support.connections import connection_to
from tests.support.cpp_stand_in import FACTS, running_cpp_stand_in
from tests.support.wait import LIMIT_S

INFO = EngineInfo("tensorrt_llm", LogProbMode.PROCESSED, 100, 1000, 5, dialect=Dialect.CUMULATIVE, tokens_per_block=32)


def request(max_tokens: int = 10, **fields: Any) -> GenerateRequest:
    return GenerateRequest("r", np.arange(40, dtype=np.int32), max_tokens, **fields)


def response(ids: Sequence[int], log_probs: Sequence[float], blocks: int = 1) -> dict[str, WireTensor]:
    tensors = [
        WireTensor("output_ids", "INT32", (1, 1, len(ids)), np.array(ids, "<i4").tobytes()),
        WireTensor("sequence_length", "INT32", (1, 1), np.array([len(ids)], "<i4").tobytes()),
        WireTensor("output_log_probs", "FP32", (1, 1, len(log_probs)), np.array(log_probs, "<f4").tobytes()),
        WireTensor("kv_cache_reused_blocks", "INT32", (1, 1), np.array([blocks], "<i4").tobytes()),
    ]
    return {tensor.name: tensor for tensor in tensors}


def read(asked: GenerateRequest, *answers: dict[str, WireTensor], info: EngineInfo = INFO) -> list[TokenChunk]:
    reader = CumulativeReader(asked, info)
    return [reader.accept(each, final=each is answers[-1]) for each in answers]


def test_ids_are_new_ones_and_log_probs_all_so_far() -> None:
    first, second, last = read(
        request(3), response([4], [-0.5]), response([5, 6], [-0.5, -1.0, -2.0]), response([], [-0.5, -1.0, -2.0])
    )
    assert [chunk.ids.tolist() for chunk in (first, second, last)] == [[4], [5, 6], []]
    assert [chunk.log_probs.tolist() for chunk in (first, second, last)] == [[-0.5], [-1.0, -2.0], []]
    assert (first.finished, second.finished) == (None, None)
    assert last.finished is not None
    assert (last.finished.reason, last.finished.cached_tokens) == (FinishReason.LENGTH, 32)
    assert {chunk.weight_version for chunk in (first, second, last)} == {5}


@pytest.mark.parametrize(
    ("answers", "fields", "reason"),
    [
        ([[7], [2]], {"end_ids": (2,)}, FinishReason.STOP),
        ([[7], [8, 9]], {"stop_words": ((7, 8, 9),)}, FinishReason.STOP),
        ([[7, 8], [9], []], {"stop_words": ((8, 9),)}, FinishReason.STOP),
        ([[1] * 9, [2]], {"end_ids": (2,)}, FinishReason.STOP),
        ([[1] * 10], {"end_ids": (2,)}, FinishReason.LENGTH),
        ([[7, 8, 9], [3]], {"stop_words": ((7, 8, 9),)}, FinishReason.CANCELLED),
        ([[8, 9]], {"stop_words": ((7, 8, 9),)}, FinishReason.CANCELLED),
        ([[]], {"end_ids": (2,)}, FinishReason.CANCELLED),
    ],
)
def test_why_a_reply_ended_is_inferred(answers: list[list[int]], fields: Any, reason: FinishReason) -> None:
    counts = np.cumsum([len(ids) for ids in answers])
    responses = [response(ids, [-1.0] * int(count)) for ids, count in zip(answers, counts, strict=True)]
    finished = read(request(**fields), *responses)[-1].finished
    assert finished is not None
    assert finished.reason is reason


def test_the_context_is_a_limit_too() -> None:
    finished = read(request(90), response([1] * 60, [-1.0] * 60))[-1].finished
    assert finished is not None
    assert finished.reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (response([4, 5], [-0.5]), "2 new ids of 2, 1 log probs"),
        (response([4], [-0.5, -0.5]), "1 new ids of 1, 2 log probs"),
        (response([1000], [-0.5]), "outside the vocabulary"),
        (response([4], [0.5]), "above 0"),
        (response([4], [float("nan")]), "not finite"),
        (response([1] * 11, [-1.0] * 11), "11 tokens came, 10 were asked for"),
        (response([4], [-0.5], blocks=-1), "kv_cache_reused_blocks is negative"),
    ],
)
def test_an_answer_that_cannot_be_true_is_an_error(answer: dict[str, WireTensor], reason: str) -> None:
    with pytest.raises(EngineProtocolError, match=reason):
        read(request(), answer)


def test_log_probs_that_got_lost_are_noticed() -> None:
    with pytest.raises(EngineProtocolError, match="1 new ids of 2, 1 log probs"):
        read(request(), response([4], [-0.5]), response([5], [-0.5]))


def test_reuse_is_reported_only_where_the_size_of_a_block_is_known() -> None:
    unknown = replace(INFO, tokens_per_block=0)
    assert wanted_outputs(INFO) == (*wanted_outputs(unknown), "kv_cache_reused_blocks")
    finished = read(request(1), response([1], [-1.0], blocks=9), info=unknown)[-1].finished
    assert finished is not None
    assert finished.cached_tokens == 0
    (finished,) = [chunk.finished for chunk in read(request(1), response([1], [-1.0], blocks=9))]
    assert finished is not None
    assert finished.cached_tokens == 40


def sent(asked: GenerateRequest) -> dict[str, Any]:
    dtypes = {"INT32": "<i4", "FP32": "<f4", "BOOL": "?", "UINT64": "<u8"}
    return {each.name: np.frombuffer(each.data, dtypes[each.dtype]).tolist() for each in encode(asked, INFO)}


def test_only_what_is_meant_is_sent() -> None:
    plain = sent(request(end_ids=(2,)))
    assert not plain.keys() & {"repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens", "end_id"}
    assert plain["stop_words_list"] == [2, 1]
    assert (plain["runtime_top_p"], plain["temperature"], plain["return_perf_metrics"]) == ([1.0], [1.0], [True])
    assert sent(request(sampling=SamplingParams(presence_penalty=0.5)))["presence_penalty"] == [0.5]


def test_greedy_is_a_top_k_of_one() -> None:
    greedy = sent(request(sampling=SamplingParams(temperature=0.0, top_k=0)))
    assert (greedy["temperature"], greedy["runtime_top_k"]) == ([1.0], [1])


def test_what_it_may_not_do_is_refused() -> None:
    with pytest.raises(EngineRejected, match="min_tokens: "):
        encode(request(sampling=SamplingParams(min_tokens=2)), INFO)


SCRIPT = {
    "rules": [
        {"session_regex": "long|told", "ids": list(range(100, 140))},
        {"session": "broken", "ids": [1], "fault": {"kind": "error_before_first_token", "message": "no memory"}},
        {"session": "slow", "ids": list(range(100, 140)), "time_per_output_token_ms": 50},
    ],
    "default": {"ids": [11, 12, 13, 2]},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TritonClient]:
    run_dir = tmp_path_factory.mktemp("cpp")
    (run_dir / "script.json").write_text(json.dumps(SCRIPT))
    parameters = {"script": str(run_dir / "script.json"), "coalesce_ms": "0"}
    async with running_cpp_stand_in(run_dir, parameters) as triton:
        info = await probe(triton.grpc_address)
        async with TritonClient(triton.grpc_address, info) as client:
            yield client


async def collect(client: TritonClient, asked: GenerateRequest) -> list[TokenChunk]:
    async with aclosing(client.generate(asked)) as chunks:
        return [chunk async for chunk in chunks]


async def test_the_probe_learns_it_from_the_configuration(client: TritonClient) -> None:
    assert client.info == EngineInfo(
        "tensorrt_llm",
        LogProbMode.PROCESSED,
        FACTS.max_seq_len,
        FACTS.vocab_size,
        weight_version=0,
        dialect=Dialect.CUMULATIVE,
        tokens_per_block=FACTS.tokens_per_block,
    )


async def test_end_tokens_come_with_their_log_probs(client: TritonClient) -> None:
    chunks = await collect(client, request(20, end_ids=(2,), session="s"))
    assert [token for chunk in chunks for token in chunk.ids.tolist()] == [11, 12, 13, 2]
    assert sum(len(chunk.log_probs) for chunk in chunks) == 4
    assert chunks[-1].finished is not None
    assert chunks[-1].finished.reason is FinishReason.STOP


async def test_many_chunks_make_one_reply_and_its_prefix_is_reused(client: TritonClient) -> None:
    for cached in (0, 36):
        chunks = await collect(client, replace(request(25, session="long"), request_id=f"long-{cached}"))
        assert len(chunks) > 5
        assert [token for chunk in chunks for token in chunk.ids.tolist()] == list(range(100, 125))
        assert chunks[-1].finished is not None
        assert (chunks[-1].finished.reason, chunks[-1].finished.cached_tokens) == (FinishReason.LENGTH, cached)


async def test_reused_blocks_and_all_log_probs_are_in_every_response(client: TritonClient) -> None:
    await collect(client, request(25, session="told"))
    responses = await raw_responses(client, request(25, session="told"))
    blocks = [np.frombuffer(each["kv_cache_reused_blocks"].data, "<i4").tolist() for each in responses]
    assert blocks == [[9]] * len(responses)
    log_probs = [np.frombuffer(each["output_log_probs"].data, "<f4").tolist() for each in responses]
    counts = [len(each["output_ids"].data) // 4 for each in responses]
    assert [len(each) for each in log_probs] == np.cumsum(counts).tolist()
    assert all(longer[: len(shorter)] == shorter for shorter, longer in pairwise(log_probs))


async def raw_responses(client: TritonClient, asked: GenerateRequest) -> list[dict[str, WireTensor]]:
    """What Triton sends, before anything is read into it."""
    message = infer_request("tensorrt_llm", "raw", encode(asked, client.info), wanted_outputs(client.info))
    message.parameters["session"].string_param = asked.session
    responses = []
    async with connection_to(client.address) as connection:
        async with open_call(connection, client.address, "raw") as call:
            await call.send(message, LIMIT_S)
            while (response := await call.read(LIMIT_S)) is not None:
                responses.append(response.outputs)
    return responses


async def test_more_tokens_than_the_context_has_room_for_are_fewer_tokens(client: TritonClient) -> None:
    prompt = np.full(FACTS.max_seq_len - 3, 7, np.int32)
    chunks = await collect(client, GenerateRequest("r", prompt, 10, session="long"))
    assert [token for chunk in chunks for token in chunk.ids.tolist()] == [100, 101, 102]
    assert chunks[-1].finished is not None
    assert chunks[-1].finished.reason is FinishReason.LENGTH


async def test_a_prompt_that_leaves_no_room_is_refused_and_no_fault_of_the_endpoint(client: TritonClient) -> None:
    with pytest.raises(EngineRejected, match="prompt too long"):
        await collect(client, GenerateRequest("r", np.full(FACTS.max_seq_len, 7, np.int32), 10))


async def test_a_fault_of_the_executor_is_a_failure(client: TritonClient) -> None:
    with pytest.raises(EngineFailed, match=r"the model failed: Executor failed .* in forwardAsync function: no memory"):
        await collect(client, request(10, session="broken"))


async def test_a_stop_ends_it_at_a_token(client: TritonClient) -> None:
    chunks: list[TokenChunk] = []
    async with aclosing(client.generate(request(40, session="slow"))) as stream:
        async for chunk in stream:
            chunks.append(chunk)
            if len(chunks) == 2:
                await client.stop("r")
    assert chunks[-1].finished is not None
    assert chunks[-1].finished.reason is FinishReason.CANCELLED
    assert 2 <= sum(len(chunk.ids) for chunk in chunks) < 40


async def test_it_is_asked_by_triton_whether_it_is_ready_and_takes_no_other_control(client: TritonClient) -> None:
    await client.check_ready()
    stats = await client.control("stats")
    assert (stats["weight_version"], stats["path"]) == (0, "none")
    assert (stats["vocab_size"], stats["max_seq_len"]) == (FACTS.vocab_size, FACTS.max_seq_len)
    assert stats["configuration"]["tokens_per_block"] == str(FACTS.tokens_per_block)
    assert not {"weight_version", "gpt_model_path"} & stats["configuration"].keys()
    with pytest.raises(EngineRejected, match=r"flush: .* takes no control requests"):
        await client.control("flush")


async def test_weights_need_a_triton_that_loads_on_demand(client: TritonClient) -> None:
    with pytest.raises(
        EngineRejected, match=r"start it with --model-control-mode=explicit and --load-model=tensorrt_llm"
    ):
        await client.control("update_weights", version=3, path="/engines/3")
    await client.check_ready()
    assert client.info.weight_version == 0
