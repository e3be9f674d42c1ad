"""The judge of load tests finds what is lost and what is not exact, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from loadtest.judge import Seen, judge, judge_without_log

LOG: list[dict[str, Any]] = [
    {"turn": 1, "prompt_ids": [1, 2], "output_ids": [3], "log_probs": [-0.5], "finish_reason": "stop"},
    {"turn": 2, "prompt_ids": [1, 2, 3, 4], "output_ids": [5, 6], "log_probs": [-1.0, -2.0], "finish_reason": "length"},
    {"turn": 3, "prompt_ids": [1, 2, 3, 4], "output_ids": [9], "log_probs": [-3.0], "finish_reason": "cancelled"},
]
SEEN = [Seen(1, None, "3"), Seen(2, 1, "5 6")]
EXPORT: dict[str, Any] = {
    "samples": [
        {
            "tokens": [1, 2, 3, 4, 5, 6],
            "response_length": 4,
            "loss_mask": [1, 0, 1, 1],
            "rollout_log_probs": [-0.5, 0.0, -1.0, -2.0],
            "metadata": {"turns": [{"turn_index": 1, "trained": True}, {"turn_index": 2, "trained": True}]},
        }
    ],
    "ledger": {"sampled": 4, "trained": 3, "dropped": {"cut": 1}},
}


def counts(seen: list[Seen], export: dict[str, Any], log: list[dict[str, Any]]) -> tuple[int, int]:
    found = judge("s", seen, export, log, says=lambda ids: " ".join(map(str, ids)))
    assert found.turns == len(seen)
    assert bool(found.notes) == bool(found.lost or found.inexact)
    return found.lost, found.inexact


def changed(**fields: Any) -> dict[str, Any]:
    export = copy.deepcopy(EXPORT)
    export["samples"][0].update(fields)
    return export


def test_an_exact_session_is_clean() -> None:
    assert counts(SEEN, EXPORT, LOG) == (0, 0)
    assert judge_without_log("s", SEEN, EXPORT).notes == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"loss_mask": [1, 0, 0, 0]}, (1, 0), id="a turn is not trained"),
        pytest.param({"loss_mask": [1, 1, 1, 1]}, (0, 1), id="a token of no turn is trained"),
        pytest.param({"tokens": [1, 2, 3, 4, 5, 7]}, (1, 1), id="another id"),
        pytest.param({"rollout_log_probs": [-0.5, 0.0, -1.0, -2.5]}, (1, 1), id="another log prob"),
    ],
)
def test_a_changed_export_is_found(fields: dict[str, Any], expected: tuple[int, int]) -> None:
    assert counts(SEEN, changed(**fields), LOG) == expected


def test_a_turn_that_is_trained_twice_is_found() -> None:
    twice = {**EXPORT, "samples": EXPORT["samples"] * 2}
    assert counts(SEEN, twice, LOG) == (0, 2)
    assert judge_without_log("s", SEEN, twice).inexact == 2


def test_a_prompt_that_does_not_continue_is_found() -> None:
    assert counts([SEEN[0], Seen(2, 3, "5 6")], EXPORT, LOG) == (0, 1)


def test_a_reply_that_was_read_otherwise_is_found() -> None:
    assert counts([SEEN[0], Seen(2, 1, "5 7")], EXPORT, LOG) == (0, 1)


def test_a_turn_that_the_engine_never_had_is_lost() -> None:
    never = Seen(4, None, "7")
    assert counts([*SEEN, never], EXPORT, LOG) == (1, 0)
    assert judge_without_log("s", [*SEEN, never], EXPORT).lost == 1


def test_a_reply_that_its_client_left_need_not_be_trained() -> None:
    left = {**LOG[0], "turn": 5, "prompt_ids": [8]}
    assert counts(SEEN, EXPORT, [*LOG, left]) == (0, 0)
