"""How a pool comes to know its endpoints, leaves one, and takes it back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.breaker import BreakerState
from engine.errors import EngineFailed, EngineTimeout, EngineUnavailable, ProbeFailed
from engine.weights import Weights
from tests.engine.fake_endpoints import Fleet, Plan, Reading, greedy, ids_of, request, settled

WHOLE = greedy(request().prompt_ids, 10)


async def test_what_is_known_of_an_endpoint() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        (state,) = pool.endpoints()
        assert (state.address, state.healthy, state.draining, state.live) == ("server-0:1", True, False, 0)
        assert (state.weight_version, state.last_error, state.breaker) == (1, None, BreakerState.CLOSED)
        fleet[0].plans = [Plan(wait_at=1)]
        reading = Reading(pool, request())
        await reading.until(lambda: reading.ids)
        assert pool.endpoints()[0].live == 1
        await reading.cancelled()


async def test_an_endpoint_that_is_down_at_the_start_joins_when_it_is_there() -> None:
    fleet = Fleet(2)
    fleet[0].down = EngineUnavailable("no Triton server answers at server-0:1")
    async with fleet.pool() as pool:
        assert [state.healthy for state in pool.endpoints()] == [False, True]
        assert pool.endpoints()[0].last_error == "no Triton server answers at server-0:1"
        assert ids_of(await Reading(pool, request()).task) == WHOLE
        fleet[0].revive()
        await fleet.clock.advance(10)
        assert [state.healthy for state in pool.endpoints()] == [True, True]


async def test_a_pool_begins_though_no_endpoint_is_there_yet() -> None:
    fleet = Fleet(2)
    for server in fleet.servers.values():
        server.down = EngineUnavailable("not there")
    async with fleet.pool() as pool:
        with pytest.raises(
            EngineUnavailable, match="no engine can be used: server-0:1: not there; server-1:1: not there"
        ):
            _ = pool.info
        with pytest.raises(EngineUnavailable):
            await pool.connect()
        with pytest.raises(EngineUnavailable):
            await pool.check_ready()
        fleet[1].revive()
        await fleet.clock.advance(10)
        await pool.check_ready()
        assert pool.info.weight_version == 1


async def test_a_pool_does_not_begin_if_all_endpoints_are_unfit() -> None:
    fleet = Fleet(2)
    for server in fleet.servers.values():
        server.unfit = ProbeFailed(f"{server.address} gives no log probs")
    with pytest.raises(ProbeFailed, match="server-0:1 gives no log probs; server-1:1 gives no log probs"):
        async with fleet.pool():
            raise AssertionError("it began")


async def test_an_unfit_endpoint_is_not_used_beside_a_fit_one() -> None:
    fleet = Fleet(2)
    fleet.home().unfit = ProbeFailed("no log probs")
    async with fleet.pool() as pool:
        assert ids_of(await Reading(pool, request()).task) == WHOLE
        assert fleet.home().requests == []
        fleet.home().unfit = None
        await fleet.clock.advance(10)
        assert all(state.healthy for state in pool.endpoints())


async def test_an_endpoint_with_another_vocabulary_is_refused_with_the_reason() -> None:
    fleet = Fleet(3)
    fleet[1].info = replace(fleet[1].info, vocab_size=999)
    async with fleet.pool() as pool:
        assert [state.healthy for state in pool.endpoints()] == [True, False, True]
        assert "server-1:1 is not used: its vocabulary is 999, not 1000" in (pool.endpoints()[1].last_error or "")
        assert pool.info.vocab_size == 1000
        assert fleet[1].open_clients == 0


async def test_a_server_that_comes_back_with_another_model_is_not_used() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        fleet[0].kill()
        await fleet.clock.advance(10)
        fleet[0].revive()
        fleet[0].info = replace(fleet[0].info, vocab_size=999)
        await fleet.clock.advance(10)
        with pytest.raises(EngineUnavailable, match="vocabulary is 999"):
            await pool.check_ready()


async def test_a_dead_endpoint_is_found_by_its_check_and_comes_back_by_itself() -> None:
    fleet = Fleet(2)
    async with fleet.pool(check_interval_s=5) as pool:
        fleet.home().kill()
        await fleet.clock.advance(6.1)
        assert [state.healthy for state in pool.endpoints()].count(False) == 1
        assert ids_of(await Reading(pool, request()).task) == WHOLE
        assert fleet.home().requests == []
        fleet.home().revive()
        await fleet.clock.advance(6.1)
        assert all(state.healthy for state in pool.endpoints())


async def test_an_endpoint_that_is_late_once_or_twice_is_still_used() -> None:
    fleet = Fleet(1)
    async with fleet.pool(check_interval_s=5) as pool:
        fleet[0].mute = EngineTimeout("no token within 10 s")
        await fleet.clock.advance(6.1)
        assert pool.endpoints()[0].healthy
        assert pool.endpoints()[0].last_error == "no token within 10 s"
        assert pool.endpoints()[0].failures == 1
        await fleet.clock.advance(12)
        assert fleet[0].trials > 1


async def test_checks_are_few() -> None:
    fleet = Fleet(1)
    async with fleet.pool(check_interval_s=5):
        await fleet.clock.advance(1000)
        assert 160 <= len(fleet[0].controls) <= 250


async def test_trials_of_a_dead_endpoint_are_few_too() -> None:
    fleet = Fleet(1)
    fleet[0].down = EngineUnavailable("not there")
    async with fleet.pool():
        await fleet.clock.advance(1000)
        assert 160 <= fleet[0].trials <= 260


async def test_an_endpoint_is_watched_whatever_breaks_its_trial() -> None:
    fleet = Fleet(2)
    broken, whole = fleet[0], fleet[1]
    broken.down = KeyError("a mistake of ours")  # type: ignore[assignment]
    async with fleet.pool() as pool:
        assert [state.healthy for state in pool.endpoints()] == [False, True]
        assert "a mistake of ours" in (pool.endpoints()[0].last_error or "")
        broken.revive()
        await fleet.clock.advance(10)
        assert all(state.healthy for state in pool.endpoints())
        assert whole.trials == 1


async def test_new_sessions_avoid_an_endpoint_that_failed_until_it_was_checked() -> None:
    fleet = Fleet(2)
    home = fleet.home()
    home.plans = [Plan(0, EngineUnavailable("not ready"))]
    async with fleet.pool() as pool:
        home.mute = EngineTimeout("late")
        await Reading(pool, request()).task
        session = next(f"s{number}" for number in range(100) if fleet.home(f"s{number}") is home)
        await Reading(pool, request(session)).task
        assert len(home.requests) == 1
        home.mute = None
        await fleet.clock.advance(10)
        session = next(f"t{number}" for number in range(100) if fleet.home(f"t{number}") is home)
        await Reading(pool, request(session)).task
        assert len(home.requests) == 2


async def test_readiness_asks_all_and_needs_one() -> None:
    fleet = Fleet(2)
    async with fleet.pool() as pool:
        fleet[0].kill()
        await pool.check_ready()
        assert [state.healthy for state in pool.endpoints()] == [False, True]
        fleet[1].kill()
        with pytest.raises(
            EngineUnavailable, match="server-0:1: no connection to server-0:1; server-1:1: no connection"
        ):
            await pool.check_ready()


async def test_weight_versions_are_read_again() -> None:
    fleet = Fleet(2)
    async with fleet.pool() as pool:
        for server in fleet.servers.values():
            server.info = replace(server.info, weight_version=7)
        await pool.check_ready()
        assert pool.info.weight_version == 7
        fleet[1].info = replace(fleet[1].info, weight_version=8)
        await pool.check_ready()
        assert (pool.info.weight_version, [state.weight_version for state in pool.endpoints()]) == (7, [7, 8])


async def test_weights_that_another_process_put_there_are_asked_for() -> None:
    """An endpoint that is down holds up nobody, and is given them when it is back with the old ones."""
    fleet = Fleet(2)
    async with fleet.pool() as pool:
        fleet[0].kill()
        fleet[1].info = replace(fleet[1].info, weight_version=2)
        await pool.adopt(Weights(2, "/w/2"))
        assert [(state.healthy, state.weight_version) for state in pool.endpoints()] == [(False, 1), (True, 2)]
        fleet[0].revive()
        await fleet.clock.advance(30)
        assert [(state.healthy, state.weight_version) for state in pool.endpoints()] == [(True, 2), (True, 2)]
        assert [each["path"] for each in fleet[0].controls if each["op"] == "update_weights"] == ["/w/2"]


async def test_a_closed_pool_watches_nothing() -> None:
    fleet = Fleet(2)
    async with fleet.pool():
        pass
    await settled()
    before = [(server.trials, len(server.controls), server.open_clients) for server in fleet.servers.values()]
    await fleet.clock.advance(100)
    assert [(server.trials, len(server.controls), server.open_clients) for server in fleet.servers.values()] == before
    assert [clients for *_, clients in before] == [0, 0]


async def test_requests_that_fail_do_not_keep_the_only_endpoint_from_others() -> None:
    fleet = Fleet(1)
    fleet[0].plans = [Plan(0, EngineFailed("the model failed: out of memory")) for _ in range(4)]
    async with fleet.pool() as pool:
        for number in range(4):
            with pytest.raises(EngineFailed):
                await Reading(pool, request(f"bad-{number}")).task
        assert pool.endpoints()[0].breaker is BreakerState.OPEN
        await pool.connect()
        assert ids_of(await Reading(pool, request()).task) == WHOLE


async def test_an_endpoint_that_fails_again_and_again_is_left_while_there_is_another() -> None:
    fleet = Fleet(2)
    home = fleet.home()
    home.plans = [Plan(0, EngineFailed("the model failed: out of memory")) for _ in range(9)]
    async with fleet.pool() as pool:
        for session in [f"s{number}" for number in range(100) if fleet.home(f"s{number}") is home][:3]:
            await fleet.clock.advance(0.001)
            assert ids_of(await Reading(pool, request(session)).task) == WHOLE
        assert len(home.requests) == 3
        assert [state.breaker for state in pool.endpoints()].count(BreakerState.OPEN) == 1
