"""Rewards of a session, of its leaves, of its turns: where each ends up, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from adapter.errors import BadRequest
from adapter.trajectory import RewardSpec, Sample
from tests.adapter.trajectory.alphabet import recorded

TOOL_FORK = "s10 u20 -> a30; s10 u20 a30 t40 -> a31; s10 u20 a30 t41 -> a32"
"""Leaves 2 and 3; turns 1 and 2 train in the first sample, turn 3 in the second."""
DRIFT_FORK = "s10 u20 -> a30; s10 u20 a30 t40 [1 10 5 2 20 5 99 3 30 5 4 40 5 3] -> a31"
"""One leaf, 2, with a sample for each turn."""


def rewards_of(turns: str, reward: Any) -> list[Any]:
    return [sample.reward for sample in recorded(turns).export(base_sample=Sample(), reward=reward).samples]


@pytest.mark.parametrize(
    ("turns", "spec", "rewards"),
    [
        pytest.param(TOOL_FORK, RewardSpec(0.5), [0.5, 0.5], id="session"),
        pytest.param(TOOL_FORK, RewardSpec(), [None, None], id="none"),
        pytest.param(TOOL_FORK, RewardSpec(leaf_rewards={2: 1.0, 3: -1.0}), [1.0, -1.0], id="each leaf"),
        pytest.param(TOOL_FORK, RewardSpec(0.5, {3: {"pass": 1}}), [0.5, {"pass": 1}], id="a leaf over the session"),
        pytest.param(TOOL_FORK, RewardSpec(0.5, {3: None}), [0.5, None], id="a leaf that has none"),
        pytest.param(DRIFT_FORK, RewardSpec(leaf_rewards={2: 1.0}), [1.0, 1.0], id="all samples of a leaf"),
        pytest.param(TOOL_FORK, RewardSpec(turn_rewards={1: 1.0, 2: 2.0, 3: 4.0}), [3.0, 4.0], id="turns where they train"),
        pytest.param(TOOL_FORK, RewardSpec(turn_rewards={3: 4.0}), [None, 4.0], id="no turn of the sample has one"),
        pytest.param(TOOL_FORK, RewardSpec(9.0, turn_rewards={1: 1.0}), [9.0, 9.0], id="the session over its turns"),
        pytest.param(TOOL_FORK, RewardSpec(None, {2: 8.0}, {1: 1.0, 3: 4.0}), [8.0, 4.0], id="a leaf over its turns"),
        pytest.param(TOOL_FORK, RewardSpec(turn_rewards={1: 0}), [0.0, None], id="zero is a reward"),
        pytest.param(DRIFT_FORK, RewardSpec(turn_rewards={1: 1.0, 2: 2.0}), [1.0, 2.0], id="one turn a sample"),
    ],
)  # fmt: skip
def test_rewards(turns: str, spec: RewardSpec, rewards: list[Any]) -> None:
    assert rewards_of(turns, spec) == rewards


def test_a_leaf_without_a_reward_of_its_own_sums_its_turns() -> None:
    """``leaf_rewards`` says None for leaf 3: there is no outcome, so what its turns got counts."""
    spec = RewardSpec(0.5, {3: None}, {3: 4.0})
    assert rewards_of(TOOL_FORK, spec) == [0.5, 4.0]


def test_each_turns_own_reward_stands_in_its_spans() -> None:
    made = recorded(TOOL_FORK).export(base_sample=Sample(), reward=RewardSpec(9.0, turn_rewards={1: 1.0, 3: 4.0}))
    assert [[(span["turn_index"], span["reward"]) for span in each.metadata["turns"]] for each in made.samples] == [
        [(1, 1.0), (2, None)],
        [(1, 1.0), (3, 4.0)],
    ]


def test_a_turn_that_trains_nowhere_rewards_nothing() -> None:
    cut = recorded(TOOL_FORK).export(
        base_sample=Sample(), reward=RewardSpec(turn_rewards={1: 1.0, 2: 2.0}), max_sample_tokens=13
    )
    assert [sample.reward for sample in cut.samples] == [1.0]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (RewardSpec(leaf_rewards={1: 1.0}), "leaf_rewards.1"),
        (RewardSpec(leaf_rewards={2: 1.0, 4: 1.0}), "leaf_rewards.4"),
        (RewardSpec(turn_rewards={4: 1.0}), "turn_rewards.4"),
        (RewardSpec(turn_rewards={0: 1.0}), "turn_rewards.0"),
    ],
)
def test_a_reward_for_what_is_not_there_is_refused(spec: RewardSpec, field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        rewards_of(TOOL_FORK, spec)
    assert caught.value.field == field
    assert str(caught.value).startswith(field)


@pytest.mark.parametrize(
    ("document", "spec"),
    [
        ({}, RewardSpec()),
        ({"reward": 1, "metadata": {}}, RewardSpec(1)),
        ({"reward": {"pass": 1.0}}, RewardSpec({"pass": 1.0})),
        ({"leaf_rewards": {"2": 1.5, "3": None, "4": {"a": 1}}}, RewardSpec(None, {2: 1.5, 3: None, 4: {"a": 1}})),
        ({"reward": 0, "turn_rewards": {"12": -1}}, RewardSpec(0, {}, {12: -1})),
        ({"reward": None, "leaf_rewards": None, "turn_rewards": None}, RewardSpec()),
    ],
)
def test_parse(document: dict[str, Any], spec: RewardSpec) -> None:
    assert RewardSpec.parse(document) == spec


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"reward": "1"}, "reward"),
        ({"reward": True}, "reward"),
        ({"reward": [1]}, "reward"),
        ({"reward": math.nan}, "reward"),
        ({"leaf_rewards": [1]}, "leaf_rewards"),
        ({"leaf_rewards": {"x": 1}}, "leaf_rewards.x"),
        ({"leaf_rewards": {"0": 1}}, "leaf_rewards.0"),
        ({"leaf_rewards": {"01": 1}}, "leaf_rewards.01"),
        ({"leaf_rewards": {"9" * 5000: 1}}, "leaf_rewards." + "9" * 5000),
        ({"leaf_rewards": {"1": "good"}}, "leaf_rewards.1"),
        ({"turn_rewards": 1}, "turn_rewards"),
        ({"turn_rewards": {"-1": 1}}, "turn_rewards.-1"),
        ({"turn_rewards": {"1": None}}, "turn_rewards.1"),
        ({"turn_rewards": {"1": {"a": 1}}}, "turn_rewards.1"),
        ({"turn_rewards": {"1": math.inf}}, "turn_rewards.1"),
    ],
)
def test_parse_names_the_wrong_field(document: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        RewardSpec.parse(document)
    assert caught.value.field == field
