"""Rendezvous hashing: everyone knows the owner, shares are even, and a change of the number of workers moves little."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.ownership import OwnedElsewhere, Ownership

NAMES = [f"session-{number}" for number in range(4000)]


@given(st.text(max_size=50), st.integers(1, 32))
def test_every_worker_names_the_same_owner(sid: str, workers: int) -> None:
    owners = {Ownership(slot, workers).owner(sid) for slot in range(workers)}
    assert len(owners) == 1
    assert owners.pop() in range(workers)


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_shares_are_even(workers: int) -> None:
    counts = [0] * workers
    for sid in NAMES:
        counts[Ownership(0, workers).owner(sid)] += 1
    assert min(counts) > 0.85 * len(NAMES) / workers


def test_one_worker_more_takes_its_share_and_moves_nothing_else() -> None:
    before, after = Ownership(0, 4), Ownership(0, 5)
    moved = [sid for sid in NAMES if before.owner(sid) != after.owner(sid)]
    assert all(after.owner(sid) == 4 for sid in moved)
    assert 0.15 < len(moved) / len(NAMES) < 0.25


def test_a_worker_names_sessions_that_it_owns() -> None:
    for slot in range(3):
        mine = Ownership(slot, 3)
        assert mine.owner(mine.new_name()) == slot


def test_other_workers_sessions_are_refused() -> None:
    sid = Ownership(1, 2).new_name()
    Ownership(1, 2).require(sid)
    with pytest.raises(OwnedElsewhere) as refused:
        Ownership(0, 2).require(sid)
    assert refused.value.slot == 1
