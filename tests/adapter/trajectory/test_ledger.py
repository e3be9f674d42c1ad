"""Every sampled token is trained once or dropped for a reason."""

from __future__ import annotations

import numpy as np
import pytest

from adapter.trajectory import Generation, Ledger, LedgerMismatch, Sample, Trajectory, TurnRecord
from adapter.trajectory.ledger import Fates
from tests.adapter.trajectory.alphabet import export, recorded

TWO_TURNS = "s10 u20 -> a30; s10 u20 a30 t40 -> a31"
REALIGNED = "s10 u20 -> a30; s10 u20 a30 t40 [P 30 99 4 40 5 3] -> a31"


@pytest.mark.parametrize(
    ("turns", "ledger"),
    [
        pytest.param("s10 u20 -> none", Ledger(0, 0, {}), id="nothing sampled"),
        pytest.param(TWO_TURNS + "; s10 u20 a30 t41 -> a32", Ledger(6, 6, {}), id="a shared turn trains once"),
        pytest.param(REALIGNED, Ledger(4, 2, {"realigned": 2}), id="realigned"),
        pytest.param("s10 u20 -> a30; s10 u20 a35 t40 -> a31", Ledger(4, 2, {"rewritten": 2}), id="rewritten"),
        pytest.param(
            REALIGNED + "; s10 u21 -> a32; s10 u21 a36 -> a33",
            Ledger(8, 4, {"realigned": 2, "rewritten": 2}),
            id="both",
        ),
        pytest.param(
            "s10 u20 -> a30; s10 u20 a30 t40 -> a31; s10 u20 a30 t41 [P 30 99] -> a32",
            Ledger(6, 6, {}),
            id="realigning away what another leaf trains costs nothing",
        ),
    ],
)
def test_ledger(turns: str, ledger: Ledger) -> None:
    assert export(recorded(turns)).ledger == ledger


def test_a_ledger_that_does_not_balance_is_an_error() -> None:
    Ledger(5, 3, {"cut": 2}).check()
    with pytest.raises(LedgerMismatch, match="sampled 5 != trained 3"):
        Ledger(5, 3, {"cut": 1}).check()


def test_a_lost_token_stops_the_export() -> None:
    trajectory = recorded(TWO_TURNS)
    trajectory.sampled_tokens += 1
    with pytest.raises(LedgerMismatch):
        trajectory.export(base_sample=Sample())


def turn(size: int) -> Generation:
    trajectory = Trajectory()
    record = TurnRecord([1], list(range(size)), [-0.5] * size)
    return trajectory.commit(trajectory.match([{"role": "user", "content": "u"}]), record, None)


def where(*places: int, size: int = 3) -> np.ndarray:
    return np.isin(np.arange(size), places)


def test_a_token_may_be_given_up_again_and_trained_in_the_end() -> None:
    fates, sampled = Fates(), turn(3)
    fates.meet(sampled)
    fates.drop(sampled, "truncated")
    fates.drop(sampled, "stale", where(0, 1))
    fates.train(sampled, where(0))
    assert fates.dropped() == {"stale": 1, "truncated": 1}


@pytest.mark.parametrize("again", ["train", "drop"])
def test_nothing_more_becomes_of_a_token_that_trains(again: str) -> None:
    fates, sampled = Fates(), turn(3)
    fates.train(sampled, where(1))
    fates.drop(sampled, "cut", where(0))
    with pytest.raises(LedgerMismatch, match="turn 1 trains"):
        fates.train(sampled, where(1, 2)) if again == "train" else fates.drop(sampled, "cut")


def test_a_token_without_a_fate_is_an_error() -> None:
    fates, sampled = Fates(), turn(3)
    fates.meet(sampled)
    fates.train(sampled, where(1))
    with pytest.raises(LedgerMismatch, match="2 tokens of turn 1 are neither"):
        fates.dropped()
