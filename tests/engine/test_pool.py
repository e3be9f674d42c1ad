"""The pool: sessions stay, generations survive the death of their server at every token, and nobody waits for what cannot come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.errors import (
    EngineError,
    EngineFailed,
    EngineProtocolError,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
)
from engine.pool import Pool
from engine.types import Finished, FinishReason, Guide, GuideKind, Origin, SamplingParams
from tests.engine.fake_endpoints import FakeEndpoint, Fleet, Plan, Reading, greedy, ids_of, request

WHOLE = greedy(request().prompt_ids, 10)
BROKE = EngineFailed("the generation broke off")


def assert_idle(pool: Pool, fleet: Fleet) -> None:
    """Nothing runs anywhere, on either side."""
    assert {state.live for state in pool.endpoints()} == {0}
    assert [server.running for server in fleet.servers.values()] == [{}] * len(fleet.servers)


async def dead_at(pool: Pool, server: FakeEndpoint, tokens: int, wanted: Reading | None = None) -> Reading:
    """A generation on ``server`` that has so many tokens when the server dies."""
    server.plans = [Plan(wait_at=tokens)]
    reading = wanted or Reading(pool, request())
    await reading.until(lambda: len(reading.ids) == tokens and server.running)
    server.kill()
    return reading


async def test_a_session_stays_where_it_was() -> None:
    fleet = Fleet(3)
    async with fleet.pool() as pool:
        for _ in range(6):
            chunks = await Reading(pool, request()).task
            assert ids_of(chunks) == WHOLE
            assert chunks[-1].finished == Finished(FinishReason.LENGTH, 3)
            assert {(chunk.segment, chunk.origin) for chunk in chunks} == {(0, Origin(fleet.home().address, 0))}
        assert [len(server.requests) for server in fleet.others()] == [0, 0]


async def test_a_session_that_was_moved_stays_where_it_went() -> None:
    fleet = Fleet(3)
    async with fleet.pool() as pool:
        fleet.home().kill()
        await Reading(pool, request()).task
        fleet.home().revive()
        await fleet.clock.advance(30)
        assert all(state.healthy for state in pool.endpoints())
        await Reading(pool, request()).task
        assert sorted(len(server.requests) for server in fleet.servers.values()) == [0, 0, 2]
        assert fleet.home().requests == []


@pytest.mark.parametrize("tokens", range(10))
async def test_a_generation_goes_on_elsewhere_wherever_its_server_dies(tokens: int) -> None:
    fleet = Fleet(2)
    async with fleet.pool() as pool:
        chunks = await (await dead_at(pool, fleet.home(), tokens)).task
        assert ids_of(chunks) == WHOLE
        assert [chunk.finished is not None for chunk in chunks] == [False] * 9 + [True]
        assert [chunk.segment for chunk in chunks] == ([0] * tokens + [1] * (10 - tokens) if tokens else [0] * 10)
        (rest,) = fleet.others()[0].requests
        assert rest.prompt_ids.tolist() == [1, 2, 3, *WHOLE[:tokens]]
        assert rest.max_tokens == 10 - tokens
        assert_idle(pool, fleet)


async def test_a_generation_goes_on_on_the_same_endpoint_once_that_is_back() -> None:
    fleet = Fleet(1)
    async with fleet.pool(failover_wait_s=60) as pool:
        reading = await dead_at(pool, fleet[0], 4)
        await fleet.clock.advance(20)
        assert (len(reading.ids), reading.task.done()) == (4, False)
        assert not pool.endpoints()[0].healthy
        fleet[0].revive()
        await fleet.clock.advance(10)
        assert ids_of(await reading.task) == WHOLE
        assert_idle(pool, fleet)


async def test_a_generation_does_not_wait_for_ever() -> None:
    fleet = Fleet(2)
    async with fleet.pool(failover_wait_s=60) as pool:
        for server in fleet.others():
            server.kill()
        reading = await dead_at(pool, fleet.home(), 4)
        await fleet.clock.advance(59)
        assert not reading.task.done()
        await fleet.clock.advance(2)
        with pytest.raises(EngineUnavailable, match="the generation broke off; no engine could go on within 60 s"):
            await reading.task
        assert_idle(pool, fleet)


async def test_one_without_tokens_fails_at_once_if_there_is_no_other_endpoint() -> None:
    fleet = Fleet(2)
    async with fleet.pool() as pool:
        for server in fleet.servers.values():
            server.kill()
        with pytest.raises(EngineUnavailable, match="no connection to server"):
            await Reading(pool, request()).task
        await fleet.clock.advance(1)
        with pytest.raises(
            EngineUnavailable, match=r"no engine can be used: server-0:1: no connection .*; server-1:1: no"
        ):
            await Reading(pool, request()).task
        with pytest.raises(EngineUnavailable, match="no engine can be used"):
            await pool.connect()
        with pytest.raises(EngineUnavailable, match="no engine can be used"):
            await pool.check_ready()


@pytest.mark.parametrize("error", [BROKE, EngineUnavailable("not ready"), EngineTimeout("silent")])
async def test_one_without_tokens_goes_to_another_endpoint(error: EngineError) -> None:
    fleet = Fleet(3)
    fleet.home().plans = [Plan(0, error)]
    async with fleet.pool() as pool:
        chunks = await Reading(pool, request()).task
        assert (ids_of(chunks), {chunk.segment for chunk in chunks}) == (WHOLE, {0})


@pytest.mark.parametrize("tokens", [0, 3])
async def test_what_the_engine_refuses_or_contradicts_is_not_tried_elsewhere(tokens: int) -> None:
    for error in (EngineRejected("too long"), EngineProtocolError("a log prob above 0")):
        fleet = Fleet(2)
        fleet.home().plans = [Plan(tokens, error)]
        async with fleet.pool() as pool:
            with pytest.raises(EngineFailed if tokens and isinstance(error, EngineRejected) else type(error)):
                await Reading(pool, request()).task
            assert fleet.others()[0].requests == []
            assert_idle(pool, fleet)


async def test_a_lying_endpoint_is_left_until_a_trial_finds_it_honest() -> None:
    fleet = Fleet(2)
    lie = EngineProtocolError("a log prob above 0")
    home = fleet.home()
    home.plans = [Plan(1, lie) for _ in range(3)]
    async with fleet.pool() as pool:
        for _ in range(3):
            with pytest.raises(EngineProtocolError):
                await Reading(pool, request()).task
            await fleet.clock.advance(0.1)
        home.unfit = lie
        assert ids_of(await Reading(pool, request()).task) == WHOLE
        await fleet.clock.advance(60)
        assert [state.healthy for state in pool.endpoints()] == [
            server is not home for server in fleet.servers.values()
        ]
        home.unfit = None
        await fleet.clock.advance(10)
        assert all(state.healthy for state in pool.endpoints())


async def test_a_silent_generation_is_not_tried_again_on_the_endpoint_that_kept_silent() -> None:
    fleet = Fleet(1)
    fleet[0].plans = [Plan(3, EngineTimeout("no further token within 120 s"))]
    async with fleet.pool(failover_wait_s=10) as pool:
        with pytest.raises(EngineTimeout, match="no further token"):
            await Reading(pool, request()).task
        assert len(fleet[0].requests) == 1


async def test_a_silent_generation_goes_on_elsewhere_once_there_is_an_elsewhere() -> None:
    fleet = Fleet(2)
    home, other = fleet.home(), fleet.others()[0]
    home.plans = [Plan(3, EngineTimeout("no further token within 120 s"))]
    async with fleet.pool(failover_wait_s=60) as pool:
        other.kill()
        await fleet.clock.advance(10)
        reading = Reading(pool, request())
        await fleet.clock.advance(10)
        assert (len(reading.ids), reading.task.done(), len(home.requests)) == (3, False, 1)
        other.revive()
        await fleet.clock.advance(10)
        assert ids_of(await reading.task) == WHOLE


async def test_a_generation_that_kills_every_engine_is_given_up() -> None:
    fleet = Fleet(8)
    for server in fleet.servers.values():
        server.plans = [Plan(1, BROKE)]
    async with fleet.pool(max_failovers=3) as pool:
        with pytest.raises(EngineFailed, match="broke off"):
            await Reading(pool, request()).task
        assert sum(len(server.requests) for server in fleet.servers.values()) == 4


@pytest.mark.parametrize(
    ("fields", "obstacle"),
    [
        ({"guide": Guide(GuideKind.REGEX, "a+")}, "a guide"),
        ({"sampling": SamplingParams(presence_penalty=1.0)}, "a presence or frequency penalty"),
    ],
)
async def test_what_cannot_go_on_exactly_is_an_error_to_try_again(fields: dict[str, object], obstacle: str) -> None:
    fleet = Fleet(2)
    async with fleet.pool() as pool:
        fleet.home().plans = [Plan(0, BROKE)]
        assert ids_of(await Reading(pool, request(**fields)).task) == WHOLE
        await fleet.clock.advance(1)
        fleet.others()[0].plans = [Plan(2, BROKE)]
        with pytest.raises(EngineFailed, match=f"broke off; a reply with {obstacle} cannot go on exactly, so send the"):
            await Reading(pool, request(**fields)).task


async def test_a_generation_that_somebody_cancels_at_the_engine_goes_on() -> None:
    fleet = Fleet(2)
    gate = Plan(wait_at=4)
    fleet.home().plans = [gate]
    async with fleet.pool() as pool:
        reading = Reading(pool, request())
        await reading.until(lambda: len(reading.ids) == 4)
        fleet.home().running["gen-one"].set()
        assert ids_of(await reading.task) == WHOLE


async def test_an_end_that_was_sampled_but_not_told_is_an_end() -> None:
    fleet = Fleet(1)
    fleet[0].plans = [Plan(4, BROKE)]
    async with fleet.pool() as pool:
        chunks = await Reading(pool, request(end_ids=(WHOLE[3],))).task
        assert ids_of(chunks) == WHOLE[:4]
        assert chunks[-1].finished == Finished(FinishReason.STOP, 0)


async def test_a_stop_word_over_the_cut_ends_the_reply_and_frees_the_slot() -> None:
    fleet = Fleet(2)
    async with fleet.pool() as pool:
        wanted = Reading(pool, request(stop_words=(tuple(WHOLE[2:6]),)))
        chunks = await (await dead_at(pool, fleet.home(), 4, wanted)).task
        assert ids_of(chunks) == WHOLE[:6]
        assert chunks[-1].finished == Finished(FinishReason.STOP, 0)
        assert_idle(pool, fleet)


async def test_closing_while_tokens_come_frees_the_slot() -> None:
    fleet = Fleet(1)
    fleet[0].plans = [Plan(wait_at=4)]
    async with fleet.pool() as pool:
        reading = Reading(pool, request())
        await reading.until(lambda: len(reading.ids) == 4)
        await reading.cancelled()
        assert_idle(pool, fleet)


async def test_closing_while_it_waits_for_an_endpoint_leaves_nothing() -> None:
    fleet = Fleet(1)
    async with fleet.pool() as pool:
        reading = await dead_at(pool, fleet[0], 4)
        await fleet.clock.advance(1)
        await reading.cancelled()
        fleet[0].revive()
        await fleet.clock.advance(10)
        assert len(fleet[0].requests) == 1
        assert_idle(pool, fleet)


async def test_an_endpoint_that_is_no_longer_wanted_finishes_what_it_has() -> None:
    fleet = Fleet(2)
    home, other = fleet.home(), fleet.others()[0]
    plan = Plan(wait_at=4)
    home.plans = [plan]
    async with fleet.pool() as pool:
        reading = Reading(pool, request())
        await reading.until(lambda: len(reading.ids) == 4)
        pool.use([other.address])
        assert {state.address: state.draining for state in pool.endpoints()} == {
            home.address: True,
            other.address: False,
        }
        assert ids_of(await Reading(pool, request()).task) == WHOLE
        assert len(other.requests) == 1
        plan.gate.set()
        chunks = await reading.task
        assert (ids_of(chunks), chunks[-1].segment) == (WHOLE, 0)
        await fleet.clock.advance(1)
        assert [state.address for state in pool.endpoints()] == [other.address]
        assert (home.open_clients, other.open_clients) == (0, 1)


async def test_an_endpoint_that_is_wanted_again_is_used_again() -> None:
    fleet = Fleet(2)
    home, other = fleet.home(), fleet.others()[0]
    home.plans = [Plan(wait_at=4)]
    async with fleet.pool() as pool:
        reading = Reading(pool, request())
        await reading.until(lambda: len(reading.ids) == 4)
        pool.use([other.address])
        pool.use([home.address, other.address])
        assert not any(state.draining for state in pool.endpoints())
        await reading.cancelled()
        assert {state.address for state in pool.endpoints()} == {home.address, other.address}


async def test_a_busy_endpoint_gets_no_new_sessions_and_keeps_its_own() -> None:
    fleet = Fleet(2)
    home = fleet.home("s0")
    async with fleet.pool() as pool:
        await Reading(pool, request("s0")).task
        sessions = [f"s{number}" for number in range(1, 60) if fleet.home(f"s{number}") is home][:8]
        home.plans = [Plan(wait_at=1) for _ in sessions]
        fleet.others()[0].plans = [Plan(wait_at=1) for _ in sessions]
        readings = [Reading(pool, request(session)) for session in sessions]
        await readings[-1].until(lambda: all(len(reading.ids) == 1 for reading in readings))
        assert {state.live for state in pool.endpoints()} == {3, 5} or {state.live for state in pool.endpoints()} == {4}
        home.plans = []
        await Reading(pool, request("s0")).task
        assert home.requests[-1].session == "s0"
        for reading in readings:
            await reading.cancelled()


async def test_another_endpoints_smaller_context_is_the_pools() -> None:
    fleet = Fleet(2)
    fleet[1].info = replace(fleet[1].info, max_seq_len=100)
    async with fleet.pool() as pool:
        assert pool.info.max_seq_len == 100


async def test_an_endpoint_that_gave_nothing_once_may_go_on_with_a_generation() -> None:
    fleet = Fleet(2)
    home, other = fleet.home(), fleet.others()[0]
    home.plans = [Plan(0, EngineUnavailable("not ready"))]
    async with fleet.pool() as pool:
        other.plans = [Plan(wait_at=4)]
        reading = Reading(pool, request())
        await reading.until(lambda: len(reading.ids) == 4)
        await fleet.clock.advance(1)
        other.kill()
        assert ids_of(await reading.task) == WHOLE
        assert len(home.requests) == 2
