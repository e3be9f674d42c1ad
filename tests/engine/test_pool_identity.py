"""A server that is another one than was tried: nothing is sent there before it was tried too, however short it was away."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engine.breaker import BreakerState
from engine.errors import EngineError, EngineFailed, EngineTimeout, EngineUnavailable
from tests.engine.fake_endpoints import Fleet, Plan, Reading, greedy, ids_of, request, settled

WHOLE = greedy(request().prompt_ids, 10)


async def test_a_server_that_was_restarted_is_tried_before_the_next_generation() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        fleet[0].restart(max_seq_len=100, weight_version=7)
        assert ids_of(await Reading(pool, request()).task) == WHOLE
        assert (fleet[0].trials, len(fleet[0].requests)) == (2, 1)
        assert (pool.info.max_seq_len, pool.info.weight_version) == (100, 7)
        assert pool.endpoints()[0].healthy
        assert fleet[0].open_clients == 1


async def test_one_with_another_vocabulary_is_refused_until_the_right_one_is_back() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        fleet[0].restart(vocab_size=999)
        with pytest.raises(EngineUnavailable, match=r"no engine can be used: .* its vocabulary is 999, not 1000"):
            await Reading(pool, request()).task
        await fleet.clock.advance(20)
        with pytest.raises(EngineUnavailable, match="its vocabulary is 999, not 1000"):
            await pool.connect()
        assert fleet[0].requests == []
        fleet[0].restart(vocab_size=1000)
        await fleet.clock.advance(10)
        await pool.connect()
        assert ids_of(await Reading(pool, request()).task) == WHOLE


async def test_it_is_tried_without_a_generation_that_needs_it() -> None:
    fleet = Fleet(1)
    async with fleet.pool():
        fleet[0].restart()
        await settled()
        assert fleet[0].trials == 2


async def test_a_connection_that_was_only_lost_costs_a_check_and_no_trial() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        before = len(fleet[0].controls)
        fleet[0].lose()
        assert ids_of(await Reading(pool, request()).task) == WHOLE
        assert (fleet[0].trials, len(fleet[0].controls)) == (1, before + 1)
        await Reading(pool, request()).task
        assert len(fleet[0].controls) == before + 1


async def test_one_that_does_not_say_which_it_is_is_tried_after_every_loss() -> None:
    fleet = Fleet(1)
    fleet[0].anonymous = True
    async with fleet.pool() as pool:
        for losses in range(3):
            assert ids_of(await Reading(pool, request()).task) == WHOLE
            assert fleet[0].trials == 1 + losses
            fleet[0].lose()


async def test_a_model_that_was_loaded_again_beside_its_connection_is_found_by_the_check() -> None:
    fleet = Fleet(1)
    async with fleet.pool(check_interval_s=5) as pool:
        fleet[0].starts += 1
        await fleet.clock.advance(6.1)
        assert fleet[0].trials == 2
        fleet[0].info = replace(fleet[0].info, max_seq_len=50)
        await fleet.clock.advance(6.1)
        assert (fleet[0].trials, pool.info.max_seq_len) == (3, 50)


async def test_nothing_is_sent_there_while_it_is_tried_and_who_waits_is_served() -> None:
    fleet = Fleet(1)
    gate = asyncio.Event()
    async with fleet.pool() as pool:
        fleet[0].stats_gate = gate
        fleet[0].restart()
        readings = [Reading(pool, request(f"s{number}")) for number in range(5)]
        connecting = asyncio.ensure_future(pool.connect())
        await fleet.clock.advance(100)
        assert (fleet[0].requests, connecting.done()) == ([], False)
        gate.set()
        await connecting
        assert [ids_of(await reading.task) for reading in readings] == [WHOLE] * 5


async def test_a_hold_that_begins_while_one_waits_keeps_it() -> None:
    fleet = Fleet(1)
    gate = asyncio.Event()
    async with fleet.pool() as pool:
        fleet[0].stats_gate = gate
        fleet[0].lose()
        reading = Reading(pool, request())
        await settled()
        await pool.hold(0)
        gate.set()
        await fleet.clock.advance(10)
        assert fleet[0].requests == []
        pool.release()
        assert ids_of(await reading.task) == WHOLE


async def test_who_goes_away_meanwhile_leaves_nothing() -> None:
    fleet = Fleet(1)
    fleet[0].stats_gate = gate = asyncio.Event()
    gate.set()
    async with fleet.pool() as pool:
        gate.clear()
        fleet[0].lose()
        reading = Reading(pool, request())
        await settled()
        await reading.cancelled()
        gate.set()
        await settled()
        assert (fleet[0].requests, pool.endpoints()[0].live) == ([], 0)


async def test_another_endpoint_is_used_meanwhile() -> None:
    fleet = Fleet(2)
    async with fleet.pool() as pool:
        fleet.home().stats_gate = asyncio.Event()
        fleet.home().restart()
        assert ids_of(await Reading(pool, request()).task) == WHOLE
        assert (fleet.home().requests, len(fleet.others()[0].requests)) == ([], 1)


async def test_to_be_ready_takes_one_endpoint_that_is_known() -> None:
    fleet = Fleet(2)
    async with fleet.pool() as pool:
        fleet[0].stats_gate = asyncio.Event()
        fleet[0].lose()
        await asyncio.wait_for(pool.connect(), 5)


async def test_one_that_failed_is_no_last_resort_once_its_connection_was_lost() -> None:
    fleet = Fleet(1)
    fleet[0].plans = [Plan(0, EngineFailed("the model failed: out of memory")) for _ in range(3)]
    async with fleet.pool() as pool:
        for number in range(3):
            with pytest.raises(EngineFailed):
                await Reading(pool, request(f"bad-{number}")).task
        fleet[0].lose()
        with pytest.raises(EngineUnavailable, match="no engine can be used"):
            await Reading(pool, request()).task
        await fleet.clock.advance(10)
        assert ids_of(await Reading(pool, request()).task) == WHOLE


async def test_a_connection_that_is_lost_during_its_check_is_checked_again() -> None:
    fleet = Fleet(1)
    fleet[0].stats_gate = gate = asyncio.Event()
    gate.set()
    async with fleet.pool() as pool:
        gate.clear()
        fleet[0].lose()
        await settled()
        before = len(fleet[0].controls)
        fleet[0].lose()
        gate.set()
        assert ids_of(await Reading(pool, request()).task) == WHOLE
        assert (len(fleet[0].controls), fleet[0].trials) == (before + 1, 1)


async def test_what_answers_over_a_new_connection_is_not_taken_for_what_was_asked() -> None:
    """The loss was not noticed in time: the request went over the new connection."""
    fleet = Fleet(1)
    plan = Plan(wait_at=0)
    fleet[0].plans = [plan]
    async with fleet.pool() as pool:
        reading = Reading(pool, request())
        await reading.until(lambda: fleet[0].requests)
        fleet[0].lose()
        plan.gate.set()
        with pytest.raises(EngineUnavailable, match="the connection to server-0:1 was lost"):
            await reading.task
        assert reading.chunks == []


async def test_a_reply_whose_tokens_come_is_not_cut_by_a_new_connection() -> None:
    """A server that means to end takes no new calls and lets the running ones end."""
    fleet = Fleet(1)
    plan = Plan(wait_at=4)
    fleet[0].plans = [plan]
    async with fleet.pool() as pool:
        reading = Reading(pool, request())
        await reading.until(lambda: len(reading.ids) == 4)
        fleet[0].lose()
        plan.gate.set()
        chunks = await reading.task
        assert (ids_of(chunks), chunks[-1].segment) == (WHOLE, 0)


@pytest.mark.parametrize("error", [EngineUnavailable, EngineTimeout, EngineFailed])
async def test_a_server_that_is_there_again_but_does_not_answer_is_not_used(error: type[EngineError]) -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        fleet[0].mute = error("not yet")
        fleet[0].restart()
        with pytest.raises(EngineUnavailable, match="not yet"):
            await Reading(pool, request()).task
        assert pool.endpoints()[0].breaker is BreakerState.OPEN
        fleet[0].mute = None
        await fleet.clock.advance(10)
        assert ids_of(await Reading(pool, request()).task) == WHOLE


async def test_stats_that_contradict_the_configuration_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(2)
    monkeypatch.setattr(fleet[1], "stats", lambda: {"vocab_size": 5}, raising=False)
    async with fleet.pool() as pool:
        states = pool.endpoints()
        assert [state.healthy for state in states] == [True, False]
        assert "its vocabulary is 5 by its stats and 1000 by its configuration" in (states[1].last_error or "")
        assert fleet[1].open_clients == 0
