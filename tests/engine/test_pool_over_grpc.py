"""The pool over real connections: however a server ends a generation, at whatever token, the whole reply comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from engine.affinity import choose
from engine.client import ClientOptions, TritonClient
from engine.errors import EngineProtocolError, EngineRejected
from engine.pool import Pool, PoolOptions
from engine.probe import probe
from engine.types import Dialect, FinishReason
from tests.engine.fake_endpoints import Reading, greedy, ids_of, next_token, request
from tests.engine.fake_triton import Speaker, answer, described_as, failure, fake_triton, ids_asked, serving_all
from tests.support.wait import until

OPTIONS = ClientOptions(connect_timeout_s=0.5, first_token_timeout_s=20.0, inactivity_timeout_s=0.5)
TOKENS = 6
over_both = pytest.mark.parametrize("dialect", list(Dialect), ids=str)
WHOLE = greedy(request().prompt_ids, TOKENS)


@dataclass
class Served:
    """A greedy engine of two tokens a message; what happens to a generation after ``at`` tokens is ``end``'s business."""

    end: Callable[[Any, Any], AsyncIterator[Any]] | None = None
    at: int = 0
    asked: list[list[int]] = field(default_factory=list)
    """Prompts."""
    answer: Speaker = field(default_factory=lambda: Speaker(Dialect.DELTA))
    cancelled: int = 0

    async def generate(self, message: Any, context: Any) -> AsyncIterator[Any]:
        ids = ids_asked(message)
        if [tensor.name for tensor in message.inputs][-1] == "stop":
            yield self.answer(message, [], final=True)
            return
        self.asked.append(list(ids))
        (count,) = ids_asked(message, "request_output_len")
        try:
            async for response in self._tokens(message, context, ids, count):
                yield response
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def _tokens(self, message: Any, context: Any, ids: list[int], count: int) -> AsyncIterator[Any]:
        given = 0
        while given < count:
            if self.end is not None and given >= self.at:
                async for response in self.end(message, context):
                    yield response
                return
            new = []
            for _ in range(min(2, count - given)):
                ids.append(next_token(ids))
                new.append(ids[-1])
            given += len(new)
            yield self.answer(message, new, final=given == count)


async def aborted(message: Any, context: Any) -> AsyncIterator[Any]:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
    yield


async def internal(message: Any, context: Any) -> AsyncIterator[Any]:
    await context.abort(grpc.StatusCode.INTERNAL, "a mistake")
    yield


async def reported(message: Any, context: Any) -> AsyncIterator[Any]:
    yield failure("Stub process 'tensorrt_llm_0_0' is not healthy.")


async def closed(message: Any, context: Any) -> AsyncIterator[Any]:
    return
    yield


async def silent(message: Any, context: Any) -> AsyncIterator[Any]:
    await asyncio.Event().wait()
    yield


async def lying(message: Any, context: Any) -> AsyncIterator[Any]:
    yield answer(message, [1], log_prob=0.5)


async def refusing(message: Any, context: Any) -> AsyncIterator[Any]:
    yield failure("invalid request: no")


@asynccontextmanager
async def pool_over(*servers: Served, dialect: Dialect = Dialect.DELTA, **options: Any) -> AsyncIterator[Pool]:
    async def open_client(address: str) -> TritonClient:
        return TritonClient(address, await probe(address, options=OPTIONS), OPTIONS)

    async with AsyncExitStack() as stack:
        for server in servers:
            server.answer = Speaker(dialect)
        scripts = [serving_all(server.generate, server.answer) for server in servers]
        tritons = [fake_triton(script, described_as(dialect)) for script in scripts]
        addresses = [await stack.enter_async_context(triton) for triton in tritons]
        yield await stack.enter_async_context(Pool(addresses, open_client, PoolOptions(**options)))


def session_on(pool: Pool, number: int) -> str:
    """A session whose home is the endpoint of that number."""
    addresses = [state.address for state in pool.endpoints()]
    names = (f"session-{count}" for count in range(1000))
    return next(name for name in names if choose(name, dict.fromkeys(addresses, 0)) == addresses[number])


@over_both
@pytest.mark.parametrize("end", [aborted, internal, reported, closed, silent])
@pytest.mark.parametrize("at", [2, 4])
async def test_a_generation_that_ends_before_its_end_goes_on_elsewhere(end: Any, at: int, dialect: Dialect) -> None:
    bad, good = Served(end, at), Served()
    async with pool_over(bad, good, dialect=dialect) as pool:
        chunks = await Reading(pool, request(session_on(pool, 0), max_tokens=TOKENS)).task
    assert ids_of(chunks) == WHOLE
    assert [chunk.segment for chunk in chunks] == [0] * (at // 2) + [1] * ((TOKENS - at) // 2)
    assert good.asked == [[1, 2, 3, *WHOLE[:at]]]


@pytest.mark.parametrize("end", [aborted, internal, reported, closed])
async def test_a_generation_that_never_began_is_asked_for_elsewhere(end: Any) -> None:
    bad, good = Served(end, 0), Served()
    async with pool_over(bad, good) as pool:
        chunks = await Reading(pool, request(session_on(pool, 0), max_tokens=TOKENS)).task
    assert (ids_of(chunks), chunks[0].segment, good.asked) == (WHOLE, 0, [[1, 2, 3]])


@pytest.mark.parametrize(("end", "error"), [(lying, EngineProtocolError), (refusing, EngineRejected)])
async def test_a_lie_and_a_refusal_are_not_tried_elsewhere(end: Any, error: Any) -> None:
    bad, good = Served(end, 0), Served()
    async with pool_over(bad, good) as pool:
        with pytest.raises(error):
            await Reading(pool, request(session_on(pool, 0), max_tokens=TOKENS)).task
    assert good.asked == []


async def test_a_server_that_ends_and_comes_back_goes_on_with_its_generations() -> None:
    server = Served(silent, 4)

    async def open_client(address: str) -> TritonClient:
        return TritonClient(address, await probe(address, options=OPTIONS), OPTIONS)

    first = fake_triton(serving_all(server.generate))
    address = await first.__aenter__()
    async with Pool([address], open_client, PoolOptions(check_interval_s=0.1, failover_wait_s=30)) as pool:
        reading = Reading(pool, request(max_tokens=TOKENS))
        await until(lambda: len(reading.ids) == 4)
        await first.__aexit__(None, None, None)
        await until(lambda: not pool.endpoints()[0].healthy)
        server.end = None
        async with fake_triton(serving_all(server.generate), port=int(address.rpartition(":")[2])):
            chunks = await reading.task
    assert ids_of(chunks) == WHOLE
    assert [chunk.segment for chunk in chunks] == [0, 0, 1]


@over_both
async def test_a_hold_cuts_a_generation_that_waits_for_its_next_token(dialect: Dialect) -> None:
    server = Served(silent, 4)
    async with pool_over(server, dialect=dialect, cut_grace_s=0.05) as pool:
        reading = Reading(pool, request(max_tokens=TOKENS))
        await until(lambda: len(reading.ids) == 4)
        await pool.hold(0)
        await until(lambda: server.cancelled)
        assert pool.endpoints()[0].live == 0
        server.end = None
        pool.release()
        chunks = await reading.task
    assert ids_of(chunks) == WHOLE
    assert chunks[-1].finished is not None and chunks[-1].finished.reason is FinishReason.LENGTH


@over_both
async def test_many_generations_survive_servers_that_break_off_at_random(dialect: Dialect) -> None:
    bad = [Served(aborted, at) for at in (1, 3, 5)]
    async with pool_over(*bad, Served(), dialect=dialect, max_failovers=100) as pool:
        readings = [Reading(pool, request(f"s{number}", max_tokens=40)) for number in range(60)]
        found = [ids_of(await reading.task) for reading in readings]
    assert found == [greedy(request().prompt_ids, 40)] * 60
