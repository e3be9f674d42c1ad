"""Affinity: sessions spread evenly, move only when they must, and a busy replica gets no new ones."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.affinity import BOUND, STAY_BOUND, STAY_LEAST, capacity, choose, ranked

REPLICAS = ("10.0.0.1:8001", "10.0.0.2:8001", "10.0.0.3:8001")
IDLE = dict.fromkeys(REPLICAS, 0)


def test_sessions_spread_evenly() -> None:
    counts = Counter(choose(f"session-{number}", IDLE) for number in range(3000))
    assert all(900 < counts[address] < 1100 for address in REPLICAS)


def test_a_replica_that_goes_moves_only_its_own_sessions() -> None:
    left = dict.fromkeys(REPLICAS[:2], 0)
    for number in range(300):
        session = f"session-{number}"
        before = choose(session, IDLE)
        assert choose(session, left) == (before if before in left else ranked(session, left)[0])


def test_a_ranking_is_the_same_whatever_the_order_of_the_replicas() -> None:
    assert ranked("one", IDLE) == ranked("one", dict(reversed(IDLE.items())))


def test_a_new_session_passes_over_a_replica_with_more_than_its_share() -> None:
    first, second, third = ranked("one", IDLE)
    assert capacity({first: 5, second: 2, third: 2}, BOUND) == 5
    assert choose("one", {first: 4, second: 2, third: 2}) == second
    assert choose("one", {first: 3, second: 3, third: 3}) == first


def test_a_session_stays_where_its_cache_is() -> None:
    first, second, third = ranked("one", IDLE)
    assert choose("one", {first: 0, second: STAY_LEAST - 1, third: 0}, home=second) == second


def test_a_session_leaves_a_replica_that_is_grossly_overloaded() -> None:
    first, second, third = ranked("one", IDLE)
    loads = {first: 0, second: 300, third: 0}
    assert capacity(loads, STAY_BOUND) == 301
    assert choose("one", loads, home=second) == second
    many = {f"10.0.1.{number}:8001": 0 for number in range(10)}
    assert choose("one", {**many, second: STAY_LEAST}, home=second) in many


def test_a_session_whose_replica_is_gone_is_placed_as_a_new_one() -> None:
    assert choose("one", IDLE, home="10.0.0.9:8001") == choose("one", IDLE)


@given(st.dictionaries(st.sampled_from([f"r{n}:1" for n in range(8)]), st.integers(0, 50), min_size=1), st.text())
def test_a_new_session_is_never_placed_beyond_the_bound(loads: dict[str, int], session: str) -> None:
    assert loads[choose(session, loads)] < capacity(loads, BOUND)


@pytest.mark.parametrize("session", ["", "ein ü", "\udc80"])
def test_any_name_is_a_session(session: str) -> None:
    assert choose(session, IDLE) in REPLICAS
