"""The client: every way in which an engine can fail is the right error, and the next request is not touched by it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from engine.client import ClientOptions, TritonClient
from engine.errors import (
    EngineError,
    EngineFailed,
    EngineProtocolError,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
)
from engine.types import Finished, FinishReason, GenerateRequest, Guide, GuideKind
from tests.engine.conftest import Server
from tests.engine.fake_triton import answer, failure, fake_triton
from tests.engine.misbehaving import INFO, collect, request, sampled_ids
from tests.support.wait import until

SHORT_CONNECT = ClientOptions(connect_timeout_s=0.2)
MANY_TOKENS = 1_200_000
"""4.8 MB, above gRPC's default limit for a message."""


async def test_a_generation_comes_token_by_token(client: TritonClient) -> None:
    chunks = await collect(client, request(max_tokens=5))
    assert [chunk.ids.tolist() for chunk in chunks] == [[0], [1], [2], [3], [4]]
    assert [chunk.log_probs.tolist() for chunk in chunks] == [[-0.5]] * 5
    assert {chunk.weight_version for chunk in chunks} == {7}
    assert [chunk.finished for chunk in chunks] == [None] * 4 + [Finished(FinishReason.LENGTH, cached_tokens=0)]


async def test_the_last_chunk_may_be_empty(client: TritonClient) -> None:
    (chunk,) = await collect(client, request("empty"))
    assert len(chunk.ids) == 0 and chunk.finished is not None


@pytest.mark.parametrize(
    ("behaviour", "error", "words"),
    [
        ("wrong_count", EngineProtocolError, "2 ids, 1 log probs"),
        ("wrong_length", EngineProtocolError, "sequence_length of 3"),
        ("nan", EngineProtocolError, "not finite"),
        ("infinite", EngineProtocolError, "not finite"),
        ("positive", EngineProtocolError, "above 0"),
        ("outside_vocabulary", EngineProtocolError, "vocabulary of 1000"),
        ("too_many", EngineProtocolError, "5 tokens came, 4 were asked for"),
        ("unknown_reason", EngineProtocolError, "bored"),
        ("cached_too_many", EngineProtocolError, "1000 cached tokens for a prompt of 8"),
        ("no_weight_version", EngineProtocolError, "lacks the output weight_version"),
        ("invalid", EngineRejected, "^the prompt is too long$"),
        ("error_first", EngineFailed, "the model failed: out of memory"),
        ("error_later", EngineFailed, "broke off: out of memory"),
        ("cut", EngineFailed, "without its final response"),
    ],
)
async def test_a_failure_is_the_right_error_and_the_client_goes_on(
    behaviour: str, error: type[EngineError], words: str, client: TritonClient
) -> None:
    with pytest.raises(error, match=words):
        await collect(client, request(behaviour))
    assert await sampled_ids(client) == [0, 1, 2, 3]


async def test_a_failure_does_not_touch_requests_beside_it(client: TritonClient) -> None:
    bad = ["nan", "invalid", "error_first", "error_later", "cut", "too_many"]
    results = await asyncio.gather(
        *(collect(client, request(behaviour)) for behaviour in bad),
        *(sampled_ids(client, max_tokens=50) for _ in bad),
        return_exceptions=True,
    )
    assert [isinstance(result, EngineError) for result in results[: len(bad)]] == [True] * len(bad)
    assert results[len(bad) :] == [list(range(50))] * len(bad)


async def test_many_requests_at_once_each_get_their_own(client: TritonClient) -> None:
    counts = [1 + number % 17 for number in range(200)]
    results = await asyncio.gather(*(sampled_ids(client, max_tokens=count) for count in counts))
    assert results == [list(range(count)) for count in counts]


async def test_silence_before_the_first_token_is_a_timeout_and_cancels(server: Server) -> None:
    wanted = request("silent")
    async with TritonClient(server.address, server.info, ClientOptions(first_token_timeout_s=0.2)) as client:
        with pytest.raises(EngineTimeout, match="no token within"):
            await collect(client, wanted)
        await until(lambda: (wanted.request_id, "cancelled") in server.events)


async def test_silence_between_tokens_is_a_timeout_and_cancels(server: Server) -> None:
    wanted = request("stall")
    async with TritonClient(server.address, server.info, ClientOptions(inactivity_timeout_s=0.2)) as client:
        with pytest.raises(EngineTimeout, match="no further token within"):
            await collect(client, wanted)
        await until(lambda: (wanted.request_id, "cancelled") in server.events)


async def test_closing_the_iterator_cancels_the_generation(client: TritonClient, server: Server) -> None:
    wanted = request("stall")
    async with aclosing(client.generate(wanted)) as chunks:
        assert (await anext(chunks)).ids.tolist() == [0]
    await until(lambda: (wanted.request_id, "cancelled") in server.events)


@pytest.mark.parametrize("behaviour", ["silent", "stall"])
async def test_cancelling_the_task_cancels_the_generation(behaviour: str, client: TritonClient, server: Server) -> None:
    wanted = request(behaviour)
    task = asyncio.create_task(collect(client, wanted))
    await until(lambda: (wanted.request_id, "start") in server.events)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: (wanted.request_id, "cancelled") in server.events)


async def test_cancelling_one_of_many_cancels_that_one(client: TritonClient, server: Server) -> None:
    stalled = [request("stall") for _ in range(3)]
    async with aclosing(client.generate(stalled[0])) as first, aclosing(client.generate(stalled[1])) as second:
        await anext(first)
        async with aclosing(client.generate(stalled[2])) as third:
            await anext(third)
        await until(lambda: (stalled[2].request_id, "cancelled") in server.events)
        await anext(second)
        assert (stalled[0].request_id, "cancelled") not in server.events
        assert (stalled[1].request_id, "cancelled") not in server.events


async def test_closing_the_client_ends_its_generations_with_an_error(server: Server) -> None:
    client = TritonClient(server.address, server.info)
    async with aclosing(client.generate(request("stall"))) as chunks:
        assert [len((await anext(chunks)).ids), len((await anext(chunks)).ids)] == [1, 1]
        rest = asyncio.create_task(anext(chunks))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(EngineFailed, match="closed on our side"):
            await rest


async def test_a_closed_client_is_unavailable(server: Server) -> None:
    client = TritonClient(server.address, server.info)
    await client.close()
    with pytest.raises(EngineUnavailable, match="closed"):
        await collect(client, request())


async def test_a_ready_server_is_ready(client: TritonClient) -> None:
    await client.check_ready()
    assert await client.control("stats") == {"op": "stats", "weight_version": 7}


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        async with TritonClient(address, INFO, SHORT_CONNECT) as client:
            with pytest.raises(EngineUnavailable, match="no connection to Triton at 127"):
                await collect(client, request())
            with pytest.raises(EngineUnavailable, match="no connection"):
                await client.check_ready()


async def test_a_server_that_accepts_and_says_nothing_is_unavailable() -> None:
    """Connected as far as the kernel is concerned, but no gRPC server behind it."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        async with TritonClient(f"127.0.0.1:{mute.getsockname()[1]}", INFO, SHORT_CONNECT) as client:
            with pytest.raises(EngineUnavailable, match="no connection"):
                await collect(client, request())


async def test_an_unknown_model_is_unavailable(server: Server) -> None:
    async with TritonClient(server.address, replace(server.info, model="nope")) as client:
        with pytest.raises(EngineUnavailable, match="unknown model: 'nope'"):
            await collect(client, request())


async def test_a_value_that_cannot_be_sent_is_refused_without_a_connection() -> None:
    async with TritonClient("127.0.0.1:1", INFO) as client:
        with pytest.raises(EngineRejected, match="request_output_len"):
            await collect(client, request(max_tokens=2**31))


async def test_a_guide_that_the_model_does_not_offer_is_refused_without_a_connection() -> None:
    guided = replace(request(), guide=Guide(GuideKind.REGEX, "a+"))
    async with TritonClient("127.0.0.1:1", replace(INFO, guides=frozenset({GuideKind.LARK}))) as client:
        with pytest.raises(EngineRejected, match="has no guided decoding by regex"):
            await collect(client, guided)


async def test_an_adapter_that_the_model_does_not_have_is_refused_without_a_connection() -> None:
    async with TritonClient("127.0.0.1:1", replace(INFO, loras=frozenset({"sql"}))) as client:
        with pytest.raises(EngineRejected, match="has no LoRA adapter 'law'"):
            await collect(client, replace(request(), lora="law"))


async def test_messages_above_grpcs_default_size_arrive_whole() -> None:
    prompt = np.arange(MANY_TOKENS, dtype=np.int32)
    received: list[bytes] = []

    async def script(message: Any, context: Any) -> AsyncIterator[Any]:
        names = [tensor.name for tensor in message.inputs]
        received.append(message.raw_input_contents[names.index("input_ids")])
        yield answer(message, [7] * MANY_TOKENS, final=True)

    async with fake_triton(script) as address, TritonClient(address, INFO) as client:
        (chunk,) = await collect(client, GenerateRequest("r", prompt, MANY_TOKENS))
    assert received == [prompt.tobytes()]
    assert len(chunk.ids) == len(chunk.log_probs) == MANY_TOKENS


async def test_session_and_turn_travel_as_request_parameters() -> None:
    async def script(message: Any, context: Any) -> AsyncIterator[Any]:
        sid, turn, continued = (message.parameters[name] for name in ("session", "turn", "continued"))
        yield answer(message, [len(sid.string_param), turn.int64_param, continued.int64_param], final=True)

    async with fake_triton(script) as address, TritonClient(address, INFO) as client:
        (chunk,) = await collect(client, request("sid", turn=3, continued=2))
    assert chunk.ids.tolist() == [3, 3, 2]


async def test_an_aborted_generation_ends_at_once_and_its_slot_is_freed(client: TritonClient, server: Server) -> None:
    wanted = request("stall")
    async with aclosing(client.generate(wanted)) as chunks:
        assert [len((await anext(chunks)).ids), len((await anext(chunks)).ids)] == [1, 1]
        rest = asyncio.ensure_future(anext(chunks))
        await asyncio.sleep(0)
        client.abort(wanted.request_id)
        with pytest.raises(EngineFailed, match="closed on our side"):
            await rest
    await until(lambda: (wanted.request_id, "cancelled") in server.events)
    client.abort(wanted.request_id)


async def test_a_generation_that_is_aborted_before_it_was_sent_is_not_sent() -> None:
    asked: list[str] = []

    async def script(message: Any, context: Any) -> AsyncIterator[Any]:
        asked.append(message.id)
        yield answer(message, [1], final=True)

    async with fake_triton(script) as address, TritonClient(address, INFO) as client:
        wanted = request()
        begun = asyncio.ensure_future(collect(client, wanted))
        await asyncio.sleep(0)
        client.abort(wanted.request_id)
        with pytest.raises(EngineUnavailable, match="aborted before it was sent"):
            await begun
        await collect(client, other := request())
    assert asked == [other.request_id]


async def test_a_response_after_the_final_one_is_a_protocol_error() -> None:
    async def script(message: Any, context: Any) -> AsyncIterator[Any]:
        yield answer(message, [1], final=True)
        yield answer(message, [2])

    async with fake_triton(script) as address, TritonClient(address, INFO) as client:
        with pytest.raises(EngineProtocolError, match="after the final"):
            await collect(client, request())


async def test_a_whole_reply_survives_a_connection_that_breaks_after_it() -> None:
    async def script(message: Any, context: Any) -> AsyncIterator[Any]:
        yield answer(message, [1], final=True)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    async with fake_triton(script) as address, TritonClient(address, INFO) as client:
        (chunk,) = await collect(client, request())
        assert chunk.ids.tolist() == [1] and chunk.finished is not None


async def test_a_response_to_another_request_is_a_protocol_error() -> None:
    async def script(message: Any, context: Any) -> AsyncIterator[Any]:
        response = answer(message, [1], final=True)
        response.infer_response.id = "somebody else's"
        yield response

    async with fake_triton(script) as address, TritonClient(address, INFO) as client:
        with pytest.raises(EngineProtocolError, match="somebody else's"):
            await collect(client, request())


async def test_outputs_without_their_contents_are_a_protocol_error() -> None:
    async def script(message: Any, context: Any) -> AsyncIterator[Any]:
        response = answer(message, [1], final=True)
        del response.infer_response.raw_output_contents[-1]
        yield response

    async with fake_triton(script) as address, TritonClient(address, INFO) as client:
        with pytest.raises(EngineProtocolError, match="6 outputs and 5 raw contents"):
            await collect(client, request())


async def test_an_empty_chunk_in_the_middle_is_passed_over() -> None:
    async def script(message: Any, context: Any) -> AsyncIterator[Any]:
        yield answer(message, [])
        yield answer(message, [1, 2])
        yield answer(message, [], final=True)

    async with fake_triton(script) as address, TritonClient(address, INFO) as client:
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
    code: grpc.StatusCode, before: type[EngineError], after: type[EngineError]
) -> None:
    async def script(message: Any, context: Any) -> AsyncIterator[Any]:
        if message.parameters["session"].string_param == "after":
            yield answer(message, [1])
        await context.abort(code, "because")

    async with fake_triton(script) as address, TritonClient(address, INFO) as client:
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
async def test_a_message_in_the_stream_is_told_by_its_words(message: str, expected: type[EngineError]) -> None:
    async def script(received: Any, context: Any) -> AsyncIterator[Any]:
        if received.parameters["session"].string_param == "after":
            yield answer(received, [1])
        yield failure(message)

    async with fake_triton(script) as address, TritonClient(address, INFO) as client:
        with pytest.raises(EngineError) as failed:
            await collect(client, request("before"))
        assert type(failed.value) is expected
        with pytest.raises(EngineError) as failed:
            await collect(client, request("after"))
        assert type(failed.value) is EngineFailed
