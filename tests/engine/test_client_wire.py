"""The client, in both dialects, in front of answers that a real Triton cannot be made to give; and what it sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from engine.client import TritonClient
from engine.errors import EngineError, EngineFailed, EngineProtocolError, EngineRejected, EngineUnavailable
from engine.types import EngineInfo, GenerateRequest, Guide, GuideKind, SamplingParams
from tests.engine.fake_triton import Speaker, failure, fake_triton, input_of
from tests.engine.misbehaving import CUMULATIVE_INFO, INFO, collect, request

MANY_TOKENS = 1_200_000
"""4.8 MB, above gRPC's default limit for a message."""


@pytest.fixture(params=[INFO, CUMULATIVE_INFO], ids=lambda info: str(info.dialect))
def info(request: pytest.FixtureRequest) -> EngineInfo:
    """Of the engine that the test plays."""
    played: EngineInfo = request.param
    return played


@pytest.fixture
def answer(info: EngineInfo) -> Speaker:
    """Answers properly in its dialect."""
    return Speaker(info.dialect)


async def test_a_value_that_cannot_be_sent_is_refused_without_a_connection(info: EngineInfo) -> None:
    async with TritonClient("127.0.0.1:1", info) as client:
        with pytest.raises(EngineRejected, match="request_output_len"):
            await collect(client, request(max_tokens=2**31))


async def test_a_guide_that_the_model_does_not_offer_is_refused_without_a_connection(info: EngineInfo) -> None:
    guided = replace(request(), guide=Guide(GuideKind.REGEX, "a+"))
    async with TritonClient("127.0.0.1:1", replace(info, guides=frozenset({GuideKind.LARK}))) as client:
        with pytest.raises(EngineRejected, match="has no guided decoding by regex"):
            await collect(client, guided)


async def test_an_adapter_that_the_model_does_not_have_is_refused_without_a_connection(info: EngineInfo) -> None:
    async with TritonClient("127.0.0.1:1", replace(info, loras=frozenset({"sql"}))) as client:
        with pytest.raises(EngineRejected, match="has no LoRA adapter 'law'"):
            await collect(client, replace(request(), lora="law"))


async def test_messages_above_grpcs_default_size_arrive_whole(info: EngineInfo, answer: Speaker) -> None:
    prompt = np.arange(MANY_TOKENS, dtype=np.int32)
    received: list[bytes] = []

    async def script(message: Any, context: Any) -> AsyncIterator[Any]:
        received.append(input_of(message, "input_ids"))
        yield answer(message, [7] * MANY_TOKENS, final=True)

    async with fake_triton(script) as address, TritonClient(address, info) as client:
        (chunk,) = await collect(client, GenerateRequest("r", prompt, MANY_TOKENS))
    assert received == [prompt.tobytes()]
    assert len(chunk.ids) == len(chunk.log_probs) == MANY_TOKENS


async def test_session_and_turn_travel_as_request_parameters(info: EngineInfo, answer: Speaker) -> None:
    async def script(message: Any, context: Any) -> AsyncIterator[Any]:
        sid, turn, continued = (message.parameters[name] for name in ("session", "turn", "continued"))
        yield answer(message, [len(sid.string_param), turn.int64_param, continued.int64_param], final=True)

    async with fake_triton(script) as address, TritonClient(address, info) as client:
        (chunk,) = await collect(client, request("sid", turn=3, continued=2))
    assert chunk.ids.tolist() == [3, 3, 2]


async def test_each_request_has_the_seed_and_the_ends_that_it_was_given(info: EngineInfo, answer: Speaker) -> None:
    sent: list[tuple[int, list[int]]] = []

    async def script(message: Any, context: Any) -> AsyncIterator[Any]:
        (seed,) = np.frombuffer(input_of(message, "seed"), "<u8")
        sent.append((int(seed), np.frombuffer(input_of(message, "stop_words_list"), "<i4").tolist()))
        yield answer(message, [5], final=True)

    async with fake_triton(script) as address, TritonClient(address, info) as client:
        for seed in (0, 2**64 - 1):
            await collect(client, request(end_ids=(5,), stop_words=((8, 9),), sampling=SamplingParams(seed=seed)))
    assert sent == [(0, [5, 8, 9, 1, 3, -1]), (2**64 - 1, [5, 8, 9, 1, 3, -1])]


async def test_a_generation_that_is_aborted_before_it_was_sent_is_not_sent(info: EngineInfo, answer: Speaker) -> None:
    asked: list[str] = []

    async def script(message: Any, context: Any) -> AsyncIterator[Any]:
        asked.append(message.id)
        yield answer(message, [1], final=True)

    async with fake_triton(script) as address, TritonClient(address, info) as client:
        wanted = request()
        begun = asyncio.ensure_future(collect(client, wanted))
        await asyncio.sleep(0)
        client.abort(wanted.request_id)
        with pytest.raises(EngineUnavailable, match="aborted before it was sent"):
            await begun
        await collect(client, other := request())
    assert asked == [other.request_id]


async def test_a_response_after_the_final_one_is_a_protocol_error(info: EngineInfo, answer: Speaker) -> None:
    async def script(message: Any, context: Any) -> AsyncIterator[Any]:
        yield answer(message, [1], final=True)
        yield answer(message, [2])

    async with fake_triton(script) as address, TritonClient(address, info) as client:
        with pytest.raises(EngineProtocolError, match="after the final"):
            await collect(client, request())


async def test_a_whole_reply_survives_a_connection_that_breaks_after_it(info: EngineInfo, answer: Speaker) -> None:
    async def script(message: Any, context: Any) -> AsyncIterator[Any]:
        yield answer(message, [1], final=True)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    async with fake_triton(script) as address, TritonClient(address, info) as client:
        (chunk,) = await collect(client, request())
        assert chunk.ids.tolist() == [1] and chunk.finished is not None


async def test_a_response_to_another_request_is_a_protocol_error(info: EngineInfo, answer: Speaker) -> None:
    async def script(message: Any, context: Any) -> AsyncIterator[Any]:
        response = answer(message, [1], final=True)
        response.infer_response.id = "somebody else's"
        yield response

    async with fake_triton(script) as address, TritonClient(address, info) as client:
        with pytest.raises(EngineProtocolError, match="somebody else's"):
            await collect(client, request())


async def test_outputs_without_their_contents_are_a_protocol_error(info: EngineInfo, answer: Speaker) -> None:
    async def script(message: Any, context: Any) -> AsyncIterator[Any]:
        response = answer(message, [1], final=True)
        del response.infer_response.raw_output_contents[-1]
        yield response

    async with fake_triton(script) as address, TritonClient(address, info) as client:
        with pytest.raises(EngineProtocolError, match=r"(6 outputs and 5|4 outputs and 3) raw contents"):
            await collect(client, request())


async def test_an_empty_chunk_in_the_middle_is_passed_over(info: EngineInfo, answer: Speaker) -> None:
    async def script(message: Any, context: Any) -> AsyncIterator[Any]:
        yield answer(message, [])
        yield answer(message, [1, 2])
        yield answer(message, [], final=True)

    async with fake_triton(script) as address, TritonClient(address, info) as client:
        assert [chunk.ids.tolist() for chunk in await collect(client, request())] == [[1, 2], []]


@pytest.mark.parametrize(
    ("code", "before", "after"),
    [
        (grpc.StatusCode.UNAVAILABLE, EngineUnavailable, EngineFailed),
        (grpc.StatusCode.CANCELLED, EngineUnavailable, EngineFailed),
        (grpc.StatusCode.NOT_FOUND, EngineUnavailable, EngineFailed),
        (grpc.StatusCode.INVALID_ARGUMENT, EngineRejected, EngineFailed),
        (grpc.StatusCode.INTERNAL, EngineFailed, EngineFailed),
    ],
)
async def test_a_grpc_status_means_another_thing_before_and_after_tokens(
    code: grpc.StatusCode, before: type[EngineError], after: type[EngineError], info: EngineInfo, answer: Speaker
) -> None:
    async def script(message: Any, context: Any) -> AsyncIterator[Any]:
        if message.parameters["session"].string_param == "after":
            yield answer(message, [1])
        await context.abort(code, "because")

    async with fake_triton(script) as address, TritonClient(address, info) as client:
        for behaviour, expected in (("before", before), ("after", after)):
            with pytest.raises(EngineError, match=f"{code.name}: because") as failed:
                await collect(client, request(behaviour))
            assert type(failed.value) is expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("invalid request: no ids", EngineRejected),
        ("Request for unknown model: 'tensorrt_llm' is not found", EngineUnavailable),
        ("Stub process 'tensorrt_llm_0_0' is not healthy.", EngineUnavailable),
        ("Exceeds maximum queue size", EngineUnavailable),
        ("Maximum queue size of 8 has been reached, please try again later", EngineUnavailable),
        (
            "Executor failed process requestId 7 due to the following error: Encountered an error when fetching new "
            "request: Prompt length (9) exceeds maximum input length (8).",
            EngineRejected,
        ),
        (
            "Executor failed process requestId 7 due to the following error: Encountered an error in forwardAsync "
            "function: out of memory",
            EngineFailed,
        ),
        ("an invalid request: not at the start", EngineFailed),
    ],
)
async def test_a_message_in_the_stream_is_told_by_its_words(
    message: str, expected: type[EngineError], info: EngineInfo, answer: Speaker
) -> None:
    async def script(received: Any, context: Any) -> AsyncIterator[Any]:
        if received.parameters["session"].string_param == "after":
            yield answer(received, [1])
        yield failure(message)

    async with fake_triton(script) as address, TritonClient(address, info) as client:
        with pytest.raises(EngineError) as failed:
            await collect(client, request("before"))
        assert type(failed.value) is expected
        with pytest.raises(EngineError) as failed:
            await collect(client, request("after"))
        assert type(failed.value) is EngineFailed
