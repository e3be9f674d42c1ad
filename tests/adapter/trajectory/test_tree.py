"""The shape of the tree, what matching plans, what commit does."""

from __future__ import annotations

import pytest

from adapter.trajectory import Node, Trajectory, TurnRecord, TurnRejected
from adapter.types import VersionSpan
from tests.adapter.trajectory.alphabet import ids, message, messages, record, recorded, turn


def shape(trajectory: Trajectory) -> list[str]:
    """Each path as its messages, a generated one with its turn index: ``s10 u20 a30#1``."""
    return [" ".join(_word(node) for node in chain) for chain in trajectory.chains()]


def _word(node: Node) -> str:
    word = "none" if node.message is None else node.message["content"]
    return word if node.turn_index is None else f"{word}#{node.turn_index}"


@pytest.mark.parametrize(
    ("turns", "paths"),
    [
        pytest.param("s10 u20 -> a30", ["s10 u20 a30#1"], id="1.1"),
        pytest.param("s10 u20 -> a30; s10 u20 a30 t40 -> a31", ["s10 u20 a30#1 t40 a31#2"], id="1.2"),
        pytest.param("s10 u20 -> a30; s11 u20 -> a30", ["s10 u20 a30#1", "s11 u20 a30#2"], id="1.3"),
        pytest.param("s10 u20 -> a30; s10 u21 -> a31", ["s10 u20 a30#1", "s10 u21 a31#2"], id="1.4"),
        pytest.param("s10 u20 -> a30; s10 u20 -> a31", ["s10 u20 a30#1", "s10 u20 a31#2"], id="1.5"),
        pytest.param(
            "s10 u20 -> a30; s10 u20 a30 t40 -> a31; s10 u20 a30 t41 -> a32",
            ["s10 u20 a30#1 t40 a31#2", "s10 u20 a30#1 t41 a32#3"],
            id="1.6",
        ),
        pytest.param(
            "s10 u20 -> a30; s10 u20 [1 99 10 5 2 20 5 3] -> a31", ["s10 u20 a30#1", "s10 u20 a31#2"], id="1.7"
        ),
        pytest.param("s10 u20 -> a30; s10 u20 a30 t40 t41 -> a31", ["s10 u20 a30#1 t40 t41 a31#2"], id="1.8"),
        pytest.param("s10 u20 -> none !length", ["s10 u20 none#1"], id="1.10"),
        pytest.param(
            "s10 u20 -> a30; s10 u20 a30 t40 -> a31; s10 u20 a30 t40 a31 a38 t41 -> a32",
            ["s10 u20 a30#1 t40 a31#2 a38 t41 a32#3"],
            id="2.11",
        ),
        pytest.param("s10 u20 -> a30; s10 u20 a35 t40 -> a31", ["s10 u20 a35 t40 a31#2"], id="3.1"),
        pytest.param(
            "s10 u20 -> a30; s10 u20 -> a31; s10 u20 a35 t40 -> a32",
            ["s10 u20 a30#1", "s10 u20 a31#2", "s10 u20 a35 t40 a32#3"],
            id="3.4",
        ),
        pytest.param(
            "s10 u20 -> a30; s10 u20 a35 t40 -> a31; s10 u20 a35 t40 a31 t41 -> a32",
            ["s10 u20 a35 t40 a31#2 t41 a32#3"],
            id="3.5",
        ),
    ],
)
def test_shape(turns: str, paths: list[str]) -> None:
    assert shape(recorded(turns)) == paths


def test_messages_are_matched_and_ids_are_not() -> None:
    """Cases 1.3, 1.4 and 1.7: where the tree forks."""
    by_system = recorded("s10 u20 -> a30; s11 u20 -> a30")
    by_user = recorded("s10 u20 -> a30; s10 u21 -> a31")
    by_ids = recorded("s10 u20 -> a30; s10 u20 [1 99 10 5 2 20 5 3] -> a31")
    assert len(by_system.root.children) == 2
    assert [len(node.children) for node in (by_user.root, by_user.root.children[0])] == [1, 2]
    system = by_ids.root.children[0]
    assert [len(node.children) for node in (by_ids.root, system, system.children[0])] == [1, 1, 2]


def test_paths_are_the_view_of_the_seed() -> None:
    assert recorded("s10 u20 -> a30").paths() == [
        [
            {"role": "system", "message": message("s10"), "has_generation_record": False, "turn_index": None},
            {"role": "user", "message": message("u20"), "has_generation_record": False, "turn_index": None},
            {"role": "assistant", "message": message("a30"), "has_generation_record": True, "turn_index": 1},
        ]
    ]


def test_a_replayed_assistant_message_is_no_generated_one() -> None:
    """The seed's session: the history brings an assistant message, one turn is generated."""
    trajectory = recorded("s10 u20 a30 t40 u21 -> a31")
    assert trajectory.turn_count == 1
    assert [entry["role"] for entry in trajectory.paths()[0]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "user",
        "assistant",
    ]
    assert [entry["has_generation_record"] for entry in trajectory.paths()[0]] == [False] * 5 + [True]


def test_a_reply_without_a_message_is_a_leaf() -> None:
    """Case 1.10."""
    leaf = next(recorded("s10 u20 -> none !length").chains())[-1]
    assert (leaf.role, leaf.message) == ("assistant", None)
    assert leaf.generation is not None
    assert leaf.generation.output.size == 0
    assert leaf.generation.finish_reason == "length"


def test_a_merge_says_what_it_gave_up() -> None:
    """Case 3.1."""
    trajectory = recorded("s10 u20 -> a30; s10 u20 a35 t40 -> a31")
    merged = next(trajectory.chains())[2]
    assert (merged.message, merged.generation, merged.turn_index) == (message("a35"), None, None)
    assert merged.metadata["merged_rewrite"] == {"abandoned_turn_index": 1, "abandoned_response_tokens": 2}
    assert (trajectory.turn_count, trajectory.sampled_tokens, trajectory.rewritten_tokens) == (2, 4, 2)


def test_match_changes_nothing_and_says_where() -> None:
    trajectory = recorded("s10 u20 -> a30; s10 u20 a30 t40 -> a31")
    before = shape(trajectory)
    plan = trajectory.match(messages("s10 u20 a30 t41"))
    first = next(trajectory.chains())[2].generation
    assert first is not None
    assert [_word(node) for node in plan.path[1:]] == ["s10", "u20", "a30#1"]
    assert plan.unmatched == (message("t41"),)
    assert (plan.merge, plan.base, plan.base_len) == (None, first, len(ids("P 30 5")))
    assert (shape(trajectory), trajectory.turn_count) == (before, 2)


def test_match_plans_a_merge_without_doing_it() -> None:
    trajectory = recorded("s10 u20 -> a30")
    plan = trajectory.match(messages("s10 u20 a35 t40"))
    assert plan.merge is next(trajectory.chains())[-1]
    assert (plan.base, plan.base_len) == (None, 0)
    assert shape(trajectory) == ["s10 u20 a30#1"]


def test_an_overtaken_plan_is_made_again() -> None:
    """Two requests are matched before either is committed: the tree is as if they had come one after the other."""
    trajectory = recorded("s10 u20 -> a30")
    asked = [turn("s10 u20 a30 t40 -> a31"), turn("s10 u20 a30 t40 -> a32"), turn("s10 u20 a35 -> a33")]
    plans = [trajectory.match(each.prompt_messages) for each in asked]
    assert plans[2].merge is not None, "planned while the reply was a leaf"
    for plan, each in zip(plans, asked, strict=True):
        trajectory.commit(plan, each.record(), each.response_message)
    assert shape(trajectory) == ["s10 u20 a30#1 t40 a31#2", "s10 u20 a30#1 t40 a32#3", "s10 u20 a35 a33#4"]


def test_a_plan_whose_base_was_merged_away_gets_another_base() -> None:
    trajectory = recorded("s10 u20 -> a30")
    late = turn("s10 u20 a30 t40 -> a32")
    plan = trajectory.match(late.prompt_messages)
    record(trajectory, "s10 u20 a35 -> a31")
    generation = trajectory.commit(plan, late.record(), late.response_message)
    assert generation.base is None
    assert generation.ids().tolist() == ids("P 30 5 4 40 5 3 32 5")
    assert shape(trajectory) == ["s10 u20 a35 a31#2", "s10 u20 a30 t40 a32#3"]


def test_commit_keeps_metadata_and_gives_the_generation() -> None:
    trajectory = Trajectory()
    asked = turn("s10 u20 -> a30")
    generation = trajectory.commit(
        trajectory.match(asked.prompt_messages), asked.record(), asked.response_message, {"sid": "demo"}
    )
    leaf = next(trajectory.chains())[-1]
    assert leaf.generation is generation
    assert leaf.metadata == {"sid": "demo"}


def test_a_plan_without_messages_is_refused() -> None:
    trajectory = Trajectory()
    with pytest.raises(ValueError, match="at least one message"):
        trajectory.commit(trajectory.match([]), turn("s10 -> a30").record(), None)


SPAN = (VersionSpan(0, 1, 4),)
REJECTED = [
    pytest.param(
        TurnRecord(ids("P"), [30, 31, 5], [-0.5, -0.5]), False, "output_log_probs", id="4.2 two for three ids"
    ),
    pytest.param(TurnRecord(ids("P"), [30], [-0.5, -0.5]), False, "output_log_probs", id="two for one id"),
    pytest.param(TurnRecord(ids("P"), [], [-0.5]), False, "output_log_probs", id="one for none"),
    pytest.param(TurnRecord(ids("P"), [30, 5], None), True, "output_log_probs", id="missing but required"),
    pytest.param(TurnRecord(ids("P"), [30, 5], []), True, "output_log_probs", id="empty but required"),
    pytest.param(TurnRecord([ids("P")], [30], [-0.5]), False, "prompt_ids", id="prompt is two-dimensional"),
    pytest.param(TurnRecord(ids("P"), [[30]], [-0.5]), False, "output_ids", id="output is two-dimensional"),
    pytest.param(TurnRecord(ids("P"), [30, 5], [-0.5, -0.5], versions=SPAN), False, "versions", id="span too short"),
    pytest.param(TurnRecord(ids("P"), [], None, versions=SPAN), False, "versions", id="span of nothing"),
    pytest.param(
        TurnRecord(ids("P"), [30, 5], [-1, -1], versions=(VersionSpan(1, 2, 4),)), False, "versions", id="span too late"
    ),
    pytest.param(
        TurnRecord(ids("P"), [30, 5], [-1, -1], versions=(VersionSpan(0, 2, 4), VersionSpan(1, 2, 5))),
        False,
        "versions",
        id="spans overlap",
    ),
    pytest.param(
        TurnRecord(ids("P"), [30, 5], [-1, -1], versions=(VersionSpan(0, 0, 4), VersionSpan(0, 2, 5))),
        False,
        "versions",
        id="a span of no token",
    ),
]


@pytest.mark.parametrize(("bad", "required", "names"), REJECTED)
def test_a_record_that_contradicts_itself_changes_nothing(bad: TurnRecord, required: bool, names: str) -> None:
    trajectory = Trajectory(require_log_probs=required)
    record(trajectory, "s10 u20 -> a30")
    with pytest.raises(TurnRejected, match=names):
        trajectory.record_turn(turn=bad, prompt_messages=messages("s10 u20 a35 t40"), response_message=message("a31"))
    assert issubclass(TurnRejected, AssertionError)
    assert shape(trajectory) == ["s10 u20 a30#1"]
    assert (trajectory.turn_count, trajectory.sampled_tokens, trajectory.rewritten_tokens) == (1, 2, 0)


def test_no_log_probs_are_needed_for_no_output() -> None:
    trajectory = Trajectory(require_log_probs=True)
    trajectory.record_turn(
        turn=TurnRecord(ids("P"), [], None, "length"), prompt_messages=messages("s10 u20"), response_message=None
    )
    assert trajectory.turn_count == 1
