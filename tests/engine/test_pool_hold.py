"""Hold and release: nothing is sampled in between, nothing fails by it, and what was cut goes on as if it had not been."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import EngineError, EngineFailed, EngineUnavailable
from engine.pool import Pool
from engine.types import SamplingParams
from tests.engine.fake_endpoints import Fleet, Plan, Reading, greedy, ids_of, request, settled

WHOLE = greedy(request().prompt_ids, 10)


async def held_at(pool: Pool, fleet: Fleet, tokens: int, deadline_s: float = 0.0) -> tuple[Reading, asyncio.Task[None]]:
    """A generation that has so many tokens, and the hold that was asked for then."""
    fleet.home().plans = [Plan(wait_at=tokens)]
    reading = Reading(pool, request())
    await reading.until(lambda: len(reading.ids) == tokens and fleet.home().running)
    return reading, asyncio.ensure_future(pool.hold(deadline_s))


@pytest.mark.parametrize("tokens", range(10))
async def test_a_generation_that_is_cut_goes_on_under_the_new_weights(tokens: int) -> None:
    fleet = Fleet(2)
    async with fleet.pool() as pool:
        reading, holding = await held_at(pool, fleet, tokens)
        await asyncio.wait_for(holding, 5)
        assert [server.running for server in fleet.servers.values()] == [{}, {}]
        answers = await pool.control("update_weights", version=2)
        assert all(isinstance(answer, dict) and answer["weight_version"] == 2 for answer in answers.values())
        assert pool.info.weight_version == 2
        await settled()
        assert (len(reading.ids), reading.task.done()) == (tokens, False)
        pool.release()
        chunks = await reading.task
        assert ids_of(chunks) == WHOLE
        assert [chunk.weight_version for chunk in chunks if chunk.ids.size] == [1] * tokens + [2] * (10 - tokens)
        assert [chunk.cached_tokens for chunk in chunks if not chunk.ids.size] == [5]


async def test_what_runs_may_end_before_the_deadline() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        plan = Plan(wait_at=4)
        fleet[0].plans = [plan]
        reading = Reading(pool, request())
        await reading.until(lambda: len(reading.ids) == 4)
        holding = asyncio.ensure_future(pool.hold(30))
        await fleet.clock.advance(20)
        assert not holding.done()
        plan.gate.set()
        await asyncio.wait_for(holding, 5)
        assert ids_of(await reading.task) == WHOLE
        assert len(fleet[0].requests) == 1


async def test_what_runs_is_cut_at_the_deadline() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        reading, holding = await held_at(pool, fleet, 4, deadline_s=30)
        await fleet.clock.advance(29)
        assert (holding.done(), len(fleet[0].running)) == (False, 1)
        await fleet.clock.advance(2)
        assert (holding.done(), fleet[0].running) == (True, {})
        pool.release()
        assert ids_of(await reading.task) == WHOLE


async def test_new_generations_wait_for_the_release() -> None:
    fleet = Fleet(2)
    async with fleet.pool() as pool:
        await pool.hold(0)
        assert pool.held
        readings = [Reading(pool, request(f"s{number}")) for number in range(20)]
        await pool.connect()
        await fleet.clock.advance(3600)
        assert not any(reading.task.done() for reading in readings)
        pool.release()
        assert [ids_of(await reading.task) for reading in readings] == [WHOLE] * 20


async def test_one_that_was_on_hold_waits_for_an_endpoint_though_it_has_no_tokens() -> None:
    fleet = Fleet(1)
    async with fleet.pool(failover_wait_s=60) as pool:
        await pool.hold(0)
        reading = Reading(pool, request())
        await settled()
        fleet[0].kill()
        await fleet.clock.advance(3600)
        await pool.connect()
        pool.release()
        await fleet.clock.advance(30)
        assert not reading.task.done()
        fleet[0].revive()
        await fleet.clock.advance(10)
        assert ids_of(await reading.task) == WHOLE
        await pool.hold(0)
        late = Reading(pool, request())
        await settled()
        fleet[0].kill()
        await fleet.clock.advance(10)
        pool.release()
        await fleet.clock.advance(61)
        with pytest.raises(EngineUnavailable, match="no engine can be used"):
            await late.task


async def test_a_release_ends_a_hold_that_still_waits() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        reading, holding = await held_at(pool, fleet, 4, deadline_s=30)
        await settled()
        pool.release()
        fleet[0].running["gen-one"].set()
        await asyncio.wait_for(holding, 5)
        assert ids_of(await reading.task) == WHOLE


async def test_an_engine_that_does_not_stop_is_left_after_the_grace_time() -> None:
    fleet = Fleet(1)
    fleet[0].ignores_stop = True
    async with fleet.pool(cut_grace_s=1) as pool:
        reading, holding = await held_at(pool, fleet, 4)
        await fleet.clock.advance(0.5)
        assert (holding.done(), len(fleet[0].running)) == (False, 1)
        await fleet.clock.advance(1)
        await asyncio.wait_for(holding, 5)
        await settled()
        assert fleet[0].running == {}
        pool.release()
        assert ids_of(await reading.task) == WHOLE


async def test_a_reader_that_takes_nothing_does_not_keep_its_generation_running() -> None:
    fleet = Fleet(1)
    async with fleet.pool(cut_grace_s=1) as pool:
        chunks = pool.generate(request())
        read = [await anext(chunks), await anext(chunks)]
        holding = asyncio.ensure_future(pool.hold(0))
        await fleet.clock.advance(2)
        assert holding.done()
        assert fleet[0].running["gen-one"].is_set()
        pool.release()
        read += [chunk async for chunk in chunks]
        assert ids_of(read) == WHOLE


async def test_closing_on_hold_leaves_nothing() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        reading, holding = await held_at(pool, fleet, 4)
        await holding
        waiting = Reading(pool, request("two"))
        await settled()
        await reading.cancelled()
        await waiting.cancelled()
        pool.release()
        await settled()
        assert (len(fleet[0].requests), fleet[0].running, pool.endpoints()[0].live) == (1, {}, 0)


async def test_what_cannot_go_on_exactly_fails_when_it_is_cut() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        fleet[0].plans = [Plan(wait_at=4)]
        reading = Reading(pool, request(sampling=SamplingParams(frequency_penalty=0.5)))
        await reading.until(lambda: len(reading.ids) == 4)
        await pool.hold(0)
        with pytest.raises(
            EngineFailed, match="cut for an update of the weights; a reply with a presence or frequency pen"
        ):
            await reading.task


async def test_a_cut_loses_against_an_end_that_came_first() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        reading = Reading(pool, request(end_ids=(WHOLE[3],)))
        fleet[0].plans = [Plan(wait_at=4)]
        await reading.until(lambda: len(reading.ids) == 4)
        await pool.hold(0)
        chunks = await reading.task
        assert ids_of(chunks) == WHOLE[:4]
        assert chunks[-1].finished is not None


async def test_a_server_that_dies_while_it_is_held_costs_nothing() -> None:
    fleet = Fleet(2)
    async with fleet.pool() as pool:
        reading, holding = await held_at(pool, fleet, 4)
        await holding
        fleet.home().kill()
        answers = await pool.control("stats")
        assert isinstance(answers[fleet.home().address], EngineError)
        assert not isinstance(answers[fleet.others()[0].address], EngineError)
        pool.release()
        assert ids_of(await reading.task) == WHOLE


async def test_holds_and_cuts_again_and_again_change_nothing() -> None:
    fleet = Fleet(3)
    async with fleet.pool() as pool:
        readings = [Reading(pool, request(f"s{number}", max_tokens=50)) for number in range(8)]
        for version in range(2, 12):
            await readings[0].until(lambda: True)
            await asyncio.sleep(0)
            await pool.hold(0)
            assert [server.running for server in fleet.servers.values()] == [{}] * 3
            await pool.control("update_weights", version=version)
            pool.release()
            await settled()
        for reading in readings:
            assert ids_of(await reading.task) == greedy(request().prompt_ids, 50)
            versions = [chunk.weight_version for chunk in reading.chunks]
            assert versions == sorted(versions)
