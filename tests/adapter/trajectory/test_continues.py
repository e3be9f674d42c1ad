"""Replies that go on from a beginning (see ``keeping`` for the alphabet).

Whatever the beginning is, the sampled tokens stand behind it in one row, each trained once, and a client that hands back both in
one message has its reply recognised.
"""

from __future__ import annotations

import pytest

from adapter.trajectory import Sample, Trajectory, TurnRecord
from adapter.types import HistoryPolicy
from tests.adapter.trajectory.alphabet import ASSISTANT, END, ROLES
from tests.adapter.trajectory.keeping import Player, open_ended, played

USER = ROLES["u"][1]


def rows(player: Player) -> list[tuple[list[int], list[int]]]:
    """Ids and the trained among them, of every sample."""
    export = player.trajectory.export(base_sample=Sample())
    assert export.ledger.sampled == export.ledger.trained + sum(export.ledger.dropped.values())
    found = []
    for sample in export.samples:
        response = sample.tokens[len(sample.tokens) - sample.response_length :]
        found.append((sample.tokens, [token for token, mask in zip(response, sample.loss_mask, strict=True) if mask]))
    return found


def test_the_clients_own_beginning_is_context_and_the_rest_trains() -> None:
    player = played("u20 +a30.31 -> a30.31.32")
    assert player.prompts == [[USER, 20, END, ASSISTANT, 30, 31]]
    assert rows(player) == [([USER, 20, END, ASSISTANT, 30, 31, 32, END], [32, END])]


@pytest.mark.parametrize("replay", ["a30.31.32", "a30.31.32:pad", "a30.31.32#1"])
def test_both_in_one_message_are_recognised(replay: str) -> None:
    player = played(f"u20 +a30.31 -> a30.31.32; u20 {replay} u21 -> a33")
    assert "fork" not in player.reasons
    assert len(rows(player)) == 1
    assert player.prompts[1] == [USER, 20, END, ASSISTANT, 30, 31, 32, END, USER, 21, END, ASSISTANT]


def test_a_cut_reply_goes_on_from_its_tokens() -> None:
    player = played("u20 -x a30.31.32; u20 +a30.31 -> a30.31.40")
    assert player.prompts[1] == [USER, 20, END, ASSISTANT, 30, 31]
    assert rows(player) == [([USER, 20, END, ASSISTANT, 30, 31, 40, END], [30, 31, 40, END])]
    assert player.reasons == "new interrupted"


def test_a_reply_that_ran_out_of_tokens_goes_on() -> None:
    player = played("u20 -> a30.31 !length; u20 +a30.31 -> a30.31.32; u20 a30.31.32 u21 -> a40")
    assert player.prompts[1] == [USER, 20, END, ASSISTANT, 30, 31]
    assert rows(player)[0][1] == [30, 31, 32, END, 40, END]
    assert player.reasons == "new exact exact"


def test_a_reply_is_cut_again_while_it_goes_on() -> None:
    player = played("u20 -x a30.31; u20 +a30 -x a30.32.33; u20 +a30.32 -> a30.32.34; u20 a30.32.34 u21 -> a40")
    assert rows(player) == [
        (
            [USER, 20, END, ASSISTANT, 30, 32, 34, END, USER, 21, END, ASSISTANT, 40, END],
            [30, 32, 34, END, 40, END],
        )
    ]


def test_a_reply_runs_out_of_tokens_twice() -> None:
    player = played(
        "u20 -> a30 !length; u20 +a30 -> a30.31 !length; u20 +a30.31 -> a30.31.32; u20 a30.31.32 u21 -> a40"
    )
    assert rows(player)[0][1] == [30, 31, 32, END, 40, END]
    assert player.reasons == "new exact exact exact"


def test_a_complete_reply_is_not_gone_on_from() -> None:
    """It ended with an end token: the same words are the client's beginning of another reply."""
    player = played("u20 -> a30; u20 +a30 -> a30.31")
    assert player.prompts[1] == [USER, 20, END, ASSISTANT, 30]
    assert sorted(trained for _, trained in rows(player)) == [[30, END], [31, END]]


def test_a_beginning_behind_known_turns_costs_its_own_tokens() -> None:
    player = played("u20 -> a30; u20 a30 u21 +a31 -> a31.32")
    assert player.plans[1].suffix == ({"role": "user", "content": "u21"},)
    assert player.prompts[1] == [USER, 20, END, ASSISTANT, 30, END, USER, 21, END, ASSISTANT, 31]
    assert len(rows(player)) == 1


def test_under_another_head_the_joined_reply_goes_on_as_context() -> None:
    player = played(
        "T1 | u20 -> a30 !length; T1 | u20 +a30 -> a30.31; T2 | u20 a30.31 u21 -> a40; T2 | u20 a30.31 u21 a40 u22 -> a41"
    )
    assert player.reasons == "new exact fork:tools exact"
    assert sorted(trained for _, trained in rows(player)) == [[30, 31, END], [40, END, 41, END]]


def test_two_beginnings_of_one_request_stand_side_by_side() -> None:
    player = played("u20 +a30 -> a30.31; u20 +a32 -> a32.33; u20 a32.33 u21 -> a40")
    assert sorted(trained for _, trained in rows(player)) == [[31, END], [33, END, 40, END]]


def test_under_template_policy_the_joined_reply_is_found_again() -> None:
    trajectory = Trajectory(policy=HistoryPolicy.TEMPLATE)
    user, begun = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}
    joined, more = {"role": "assistant", "content": "ab"}, {"role": "user", "content": "v"}
    plan = trajectory.match([user, begun], continues=open_ended)
    assert (plan.opening, plan.beginning) == ((user,), begun)
    first = trajectory.commit(plan, TurnRecord([1, 2, 3], [4], [-1.0], replied=1), joined)
    again = trajectory.match([user, joined, more])
    assert (again.matched, again.base) == (2, first)
