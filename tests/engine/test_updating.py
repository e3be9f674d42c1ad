"""New weights for a pool on hold: who takes them, who is taken out of service, and how it comes back."""

from __future__ import annotations

import asyncio

from engine.client import ClientOptions
from engine.errors import EngineFailed, EngineUnavailable
from engine.pool import Pool
from engine.updating import IDLE_WAIT_S, UpdateReport, newest_weights, swap_weights
from engine.weights import Weights
from tests.engine.fake_endpoints import Fleet, Plan, Reading, request, settled

NEW = Weights(2, "/checkpoints/2")
REFUSED = EngineFailed("update_weights: /checkpoints/2 holds no *.safetensors file")
LIVE = EngineFailed("update_weights: 1 requests are live; end or cancel them first")


def errors(report: UpdateReport) -> list[str | None]:
    return [endpoint.error for endpoint in report.endpoints]


def versions(pool: Pool) -> list[int | None]:
    return [state.weight_version for state in pool.endpoints() if state.healthy]


async def test_all_endpoints_get_them_and_what_was_cut_goes_on_under_them() -> None:
    fleet = Fleet(2)
    fleet.home().plans = [Plan(wait_at=4)]
    async with fleet.pool() as pool:
        reading = Reading(pool, request())
        await reading.until(lambda: len(reading.ids) == 4)
        await pool.hold(0)
        report = await swap_weights(pool, NEW, fleet.clock)
        assert (report.ok, errors(report), versions(pool)) == (True, [None, None], [2, 2])
        assert (pool.weights, pool.info.weight_version) == (NEW, 2)
        update = {"op": "update_weights", "version": 2, "path": "/checkpoints/2"}
        assert [server.controls.count(update) for server in fleet.servers.values()] == [1, 1]
        pool.release()
        chunks = await reading.task
    tokens = [chunk.weight_version for chunk in chunks for _ in chunk.ids]
    assert tokens == [1] * 4 + [2] * 6


async def test_one_that_did_not_take_them_serves_nobody_until_it_has_them() -> None:
    fleet = Fleet(2)
    fleet.home().refusal = REFUSED
    async with fleet.pool() as pool:
        await pool.hold(0)
        report = await swap_weights(pool, NEW, fleet.clock)
        pool.release()
        failed = fleet.home().address
        assert {e.address: (e.weight_version, e.error) for e in report.endpoints}[failed] == (1, str(REFUSED))
        assert versions(pool) == [2]
        assert pool.info.weight_version == 2
        assert await Reading(pool, request()).task
        assert not fleet.home().requests
        await fleet.clock.advance(30)
        state = next(state for state in pool.endpoints() if state.address == failed)
        assert state.last_error is not None
        assert "version 1, and version 2 is in force, and it did not take them: update_weights:" in state.last_error
        fleet.home().refusal = None
        await fleet.clock.advance(30)
        assert versions(pool) == [2, 2]
        assert fleet.home().info.weight_version == 2


async def test_where_all_fail_the_old_ones_go_on() -> None:
    fleet = Fleet(2)
    for server in fleet.servers.values():
        server.refusal = REFUSED
    async with fleet.pool() as pool:
        await pool.hold(0)
        report = await swap_weights(pool, NEW, fleet.clock)
        pool.release()
        assert (report.ok, pool.weights, versions(pool)) == (False, None, [1, 1])
        assert report.failures.count(str(REFUSED)) == 2
        assert {chunk.weight_version for chunk in await Reading(pool, request()).task} == {1}


async def test_one_that_is_down_gets_them_when_it_is_back() -> None:
    fleet = Fleet(2)
    async with fleet.pool() as pool:
        await pool.hold(0)
        fleet[1].kill()
        report = await swap_weights(pool, NEW, fleet.clock)
        pool.release()
        assert errors(report) == [None, f"no connection to {fleet[1].address}"]
        fleet[1].revive()
        await fleet.clock.advance(30)
        assert versions(pool) == [2, 2]


async def test_one_that_starts_again_with_old_weights_gets_the_new_ones() -> None:
    fleet = Fleet(2)
    async with fleet.pool(check_interval_s=5) as pool:
        await pool.hold(0)
        await swap_weights(pool, NEW, fleet.clock)
        pool.release()
        fleet[0].info = Fleet(1)[0].info  # as it was at the start, and no check saw it away
        await fleet.clock.advance(30)
        assert (fleet[0].info.weight_version, versions(pool)) == (2, [2, 2])
        assert fleet[0].open_clients == 1


async def test_newer_ones_that_somebody_else_put_there_stay() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        await pool.hold(0)
        await swap_weights(pool, NEW, fleet.clock)
        pool.release()
        await pool.control_at(fleet[0].address, "update_weights", version=7)
        await fleet.clock.advance(30)
        assert versions(pool) == [7]


async def test_what_is_live_there_for_others_is_waited_for() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        await pool.hold(0)
        fleet[0].refusal = LIVE
        fleet[0].running["somebody else's"] = asyncio.Event()
        swapping = asyncio.create_task(swap_weights(pool, NEW, fleet.clock))
        await fleet.clock.advance(1)
        assert not swapping.done()
        fleet[0].refusal = None
        del fleet[0].running["somebody else's"]
        await fleet.clock.advance(1)
        assert errors(await swapping) == [None]


async def test_but_not_for_ever() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        await pool.hold(0)
        fleet[0].refusal = LIVE
        fleet[0].running["somebody else's"] = asyncio.Event()
        swapping = asyncio.create_task(swap_weights(pool, NEW, fleet.clock))
        await fleet.clock.advance(IDLE_WAIT_S + 1)
        assert errors(await swapping) == [str(LIVE)]


async def test_an_answer_with_another_version_is_a_failure() -> None:
    class Forgetful(Pool):
        async def control_at(self, address: str, operation: str, **arguments: object) -> dict[str, object]:
            return {"op": operation, "weight_version": 1}

    fleet = Fleet(1)
    async with Forgetful(list(fleet.servers), fleet.open, clock=fleet.clock) as pool:
        report = await swap_weights(pool, NEW, fleet.clock)
        assert errors(report) == ["after the update it says that its weights are version 1"]


async def test_an_endpoint_that_is_gone_is_an_error_of_its_own() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        await settled()
        try:
            await pool.control_at("nowhere:1", "stats")
        except EngineUnavailable as error:
            assert str(error) == "there is no endpoint nowhere:1 any more"
        else:
            raise AssertionError("it answered")


def test_new_weights_have_a_deadline_of_their_own() -> None:
    options = ClientOptions(control_timeout_s=1, update_timeout_s=900)
    assert [options.of_control(operation) for operation in ("stats", "flush", "update_weights")] == [1, 1, 900]


async def test_the_newest_weights_are_those_of_an_endpoint_that_says_where_they_are() -> None:
    fleet = Fleet(4)
    for number, (version, path) in enumerate([(1, "/w/1"), (3, ""), (3, "/w/3"), (4, "/w/4")]):
        fleet[number].restart(weight_version=version)
        fleet[number].path = path
    async with fleet.pool() as pool:
        fleet[3].down = EngineUnavailable("no connection")
        assert await newest_weights(pool) == Weights(3, "/w/3")
        fleet[2].mute = EngineFailed("it is busy")
        assert await newest_weights(pool) == Weights(3)
        for server in fleet.servers.values():
            server.down = EngineUnavailable("no connection")
        assert await newest_weights(pool) is None
