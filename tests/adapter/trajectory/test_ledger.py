"""Every sampled token is trained once or dropped for a reason."""

from __future__ import annotations

import pytest

from adapter.trajectory import Ledger, LedgerMismatch, Sample
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
