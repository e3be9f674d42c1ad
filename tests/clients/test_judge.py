"""The judge of sessions can say no."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.judge import judge

FIRST = {"prompt_ids": [1, 2], "output_ids": [3, 4], "log_probs": [-0.5, -1.0]}
SECOND = {"prompt_ids": [1, 2, 3, 4, 5], "output_ids": [6], "log_probs": [-2.0]}
SAMPLE = {
    "tokens": [1, 2, 3, 4, 5, 6],
    "response_length": 4,
    "loss_mask": [1, 1, 0, 1],
    "rollout_log_probs": [-0.5, -1.0, 0.0, -2.0],
    "metadata": {"turns": [{"turn_index": 1, "trained": True}, {"turn_index": 2, "trained": True}]},
}
EVIDENCE: dict[str, Any] = {
    "log": [{"turn": 1, "finish_reason": "stop", **FIRST}, {"turn": 2, "finish_reason": "stop", **SECOND}],
    "explained": [
        {"turn_index": 1, "base_turn": None, "reason": "new", "label": {"kind": "main"}},
        {"turn_index": 2, "base_turn": 1, "reason": "exact", "label": {"kind": "main"}},
    ],
    "export": {"samples": [SAMPLE], "ledger": {"sampled": 3, "trained": 3, "dropped": {}}},
}


def test_a_good_session_passes() -> None:
    assert str(judge(**EVIDENCE)) == "2 turns: main x2, new x1, exact x1"


def test_branches_that_are_foreseen_pass() -> None:
    evidence = copy.deepcopy(EVIDENCE)
    evidence["explained"][1]["base_turn"] = None
    assert judge(**evidence, branches=2).turns == 2


def fork(evidence: dict[str, Any]) -> None:
    evidence["explained"][1]["base_turn"] = None


def lose_the_main_loop(evidence: dict[str, Any]) -> None:
    for turn in evidence["explained"]:
        turn["label"]["kind"] = "subagent"


def train_in_two_rows(evidence: dict[str, Any]) -> None:
    evidence["export"]["samples"][0]["metadata"]["turns"][0]["trained"] = False


def change_a_log_prob(evidence: dict[str, Any]) -> None:
    evidence["export"]["samples"][0]["rollout_log_probs"][0] = -0.25


def train_twice(evidence: dict[str, Any]) -> None:
    evidence["export"]["samples"].append(copy.deepcopy(SAMPLE))


def mask_a_reply(evidence: dict[str, Any]) -> None:
    evidence["export"]["samples"][0]["loss_mask"] = [1, 1, 0, 0]


def hide_a_token(evidence: dict[str, Any]) -> None:
    evidence["log"].append({"turn": 3, "finish_reason": "error", "output_ids": [9]})


def drop_for_no_reason(evidence: dict[str, Any]) -> None:
    evidence["export"]["ledger"] = {"sampled": 3, "trained": 2, "dropped": {"whatever": 1}}


@pytest.mark.parametrize(
    "change",
    [
        fork, lose_the_main_loop, train_in_two_rows, change_a_log_prob, train_twice, mask_a_reply, hide_a_token,
        drop_for_no_reason,
    ],
)  # fmt: skip
def test_a_bad_session_does_not(change: Callable[[dict[str, Any]], None]) -> None:
    evidence = copy.deepcopy(EVIDENCE)
    change(evidence)
    with pytest.raises(AssertionError):
        judge(**evidence)
