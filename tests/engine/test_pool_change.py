"""The list of endpoints is another one from now on: who is answered, and with what."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import EngineUnavailable
from tests.engine.fake_endpoints import FakeEndpoint, Fleet, Plan, Reading, greedy, ids_of, request, settled

WHOLE = greedy(request().prompt_ids, 10)


async def test_what_is_common_stays_known_when_the_last_endpoint_goes() -> None:
    """A generation that ends as the last one of a list that names only others is recorded, as any."""
    fleet = Fleet(1)
    plan = Plan(wait_at=4)
    fleet[0].plans = [plan]
    async with fleet.pool() as pool:
        known = pool.info
        reading = Reading(pool, request())
        await reading.until(lambda: len(reading.ids) == 4)
        fleet.servers["gone:1"] = FakeEndpoint("gone:1", down=EngineUnavailable("nobody is there"))
        pool.use(["gone:1"])
        plan.gate.set()
        assert ids_of(await reading.task) == WHOLE
        assert [state.address for state in pool.endpoints()] == ["gone:1"]
        assert pool.info == known
        with pytest.raises(EngineUnavailable, match="gone:1: nobody is there"):
            await pool.connect()


async def test_who_comes_when_all_endpoints_are_new_waits_for_their_trials() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        fleet.servers["new:1"] = FakeEndpoint("new:1")
        pool.use(["new:1"])
        await pool.connect()
        assert ids_of(await Reading(pool, request()).task) == WHOLE
        assert len(fleet.servers["new:1"].requests) == 1


async def test_a_trial_that_takes_long_is_not_waited_for_for_ever() -> None:
    fleet = Fleet(1)
    async with fleet.pool(start_wait_s=5) as pool:
        pool.use(["slow:1"])
        fleet.servers["slow:1"] = FakeEndpoint("slow:1", trial_gate=asyncio.Event())
        connecting = asyncio.create_task(pool.connect())
        await fleet.clock.advance(4)
        assert not connecting.done()
        await fleet.clock.advance(2)
        await settled()
        with pytest.raises(EngineUnavailable, match="slow:1: not tried yet"):
            await connecting
