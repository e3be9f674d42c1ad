"""The client, in both dialects: every way in which an engine can fail is the right error, and leaves the next request untouched."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing
from dataclasses import replace

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
from engine.types import Dialect, Finished, FinishReason
from tests.engine.conftest import Server
from tests.engine.misbehaving import INFO, collect, request, sampled_ids
from tests.support.wait import until

SHORT_CONNECT = ClientOptions(connect_timeout_s=0.2)

CANNOT_BE = {
    (Dialect.CUMULATIVE, "unknown_reason"): "TensorRT-LLM's C++ model tells no finish reason",
    (Dialect.CUMULATIVE, "no_weight_version"): "TensorRT-LLM's C++ model tells no weight version",
    (Dialect.CUMULATIVE, "cached_too_many"): "blocks are an upper bound, so more of them than the prompt has is no lie",
    (Dialect.DELTA, "negative_blocks"): "our models tell tokens, not blocks",
}
"""What one dialect has no words for."""


@pytest.fixture(params=["delta_server", "cumulative_server"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each test has the one, then the other."""
    chosen: Server = request.getfixturevalue(request.param)
    return chosen


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
        ("wrong_count", EngineProtocolError, r"2 (ids|new ids of 2), 1 log probs"),
        ("lost_log_probs", EngineProtocolError, r"1 (ids|new ids of 3), [02] log probs"),
        ("wrong_length", EngineProtocolError, "sequence_length of 3"),
        ("nan", EngineProtocolError, "not finite"),
        ("infinite", EngineProtocolError, "not finite"),
        ("positive", EngineProtocolError, "above 0"),
        ("no_log_probs", EngineProtocolError, "lacks the output output_log_probs"),
        ("negative", EngineProtocolError, "vocabulary of 1000"),
        ("outside_vocabulary", EngineProtocolError, "vocabulary of 1000"),
        ("too_many", EngineProtocolError, "5 tokens came, 4 were asked for"),
        ("unknown_reason", EngineProtocolError, "bored"),
        ("cached_too_many", EngineProtocolError, "1000 cached tokens for a prompt of 8"),
        ("no_weight_version", EngineProtocolError, "lacks the output weight_version"),
        ("negative_blocks", EngineProtocolError, "kv_cache_reused_blocks is negative"),
        ("invalid", EngineRejected, "^the prompt is too long$"),
        ("error_first", EngineFailed, "the model failed: out of memory"),
        ("error_later", EngineFailed, "broke off: out of memory"),
        ("cut", EngineFailed, "without its final response"),
    ],
)
async def test_a_failure_is_the_right_error_and_the_client_goes_on(
    behaviour: str, error: type[EngineError], words: str, client: TritonClient
) -> None:
    reason = CANNOT_BE.get((client.info.dialect, behaviour))
    if reason is not None:
        pytest.skip(reason)
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
    told = await client.control("stats")
    assert (told["op"], told["weight_version"]) == ("stats", 7)


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


async def test_a_stopped_generation_ends_in_good_order_with_all_that_was_sampled(
    client: TritonClient, server: Server
) -> None:
    wanted = request("stall", max_tokens=50)
    chunks = []
    async with aclosing(client.generate(wanted)) as stream:
        async for chunk in stream:
            chunks.append(chunk)
            if len(chunks) == 2:
                await client.stop(wanted.request_id)
    assert (wanted.request_id, "stopped") in server.events
    assert [chunk.ids.tolist() for chunk in chunks] == [[0], [1], []]
    assert [chunk.log_probs.tolist() for chunk in chunks] == [[-0.5], [-0.5], []]
    assert chunks[-1].finished == Finished(FinishReason.CANCELLED, cached_tokens=0)


async def test_stopping_what_has_ended_does_nothing(client: TritonClient) -> None:
    wanted = request()
    await collect(client, wanted)
    await client.stop(wanted.request_id)
    assert await sampled_ids(client) == [0, 1, 2, 3]
