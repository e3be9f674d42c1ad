"""A trajectory rebuilt from what a journal keeps of it is the same trajectory: in its exports, its reasons, its memory of replies.

The random clients of the property tests play on, against a trajectory that is rebuilt between any two steps, and check what they
always check.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapter.trajectory import Sample, SavedTurn, Trajectory, TrajectoryDamaged, TurnRecord
from adapter.types import HistoryPolicy
from tests.adapter.trajectory.keeping import Player
from tests.adapter.trajectory.saving import SavingTrajectory
from tests.adapter.trajectory.test_keep_properties import STEPS, Client, Step

CASES = [
    "u20 -> a30; u20 a30 u21 -> a31",
    "u20 -> a30:think; u20 a30 u21 -> a31; u20 a30:pad u21 a31 u22 -> a32",
    "u20 -> c30; u20 c30:keys#1 t21 -> a31",
    "T1 | s10 u20 -> a30; T2 | s10 u20 a30 u21 -> a31; T2 | s10 u20 a30 u21 a31 u22 -> a32",
    "u20 -x a30.31.32; u20 a30.31 u21 -> a40; u20 a30.31 u21 a40 u22 -> a41",
    "u20 -x a30.31.32; u20 a30.31 u21 -> a40; u20 a30 u22 -> a41",
    "u20 -x a30.31; u20 +a30 -x a30.32.33; u20 +a30.32 -> a30.32.34; u20 a30.32.34 u21 -> a40",
    "T1 | u20 -> a30 !length; T1 | u20 +a30 -> a30.31; T2 | u20 a30.31 u21 -> a40",
    "u20 -> a30; u20 -> a31; u20 a31 u21 -> a40; u20 a99 u21 -> a41",
    "u20 -> a30:void; u20 u21 -> a31; u20 u21 a31 u22 -> a32",
]


def shown(trajectory: Trajectory) -> object:
    """All that can be seen of a trajectory."""
    export = trajectory.export(base_sample=Sample())
    return (
        [sample.to_dict() for sample in export.samples],
        export.ledger.to_dict(),
        [turn.to_dict() for turn in trajectory.explain()],
        trajectory.paths(),
        [head.to_dict() for head in trajectory.heads],
        trajectory.turn_count,
    )


@pytest.mark.parametrize("case", CASES)
def test_a_rebuilt_trajectory_is_the_same(case: str) -> None:
    player = Player(SavingTrajectory(policy=HistoryPolicy.KEEP))
    player.play(case)
    assert isinstance(player.trajectory, SavingTrajectory)
    assert shown(player.trajectory.rebuilt()) == shown(player.trajectory)


@pytest.mark.parametrize("case", CASES)
def test_a_trajectory_rebuilt_after_every_turn_goes_on_alike(case: str) -> None:
    whole, pieces = (Player(SavingTrajectory(policy=HistoryPolicy.KEEP)) for _ in range(2))
    whole.play(case)
    for turn in case.split(";"):
        assert isinstance(pieces.trajectory, SavingTrajectory)
        pieces.trajectory = pieces.trajectory.rebuilt()
        pieces.play(turn)
    assert shown(pieces.trajectory) == shown(whole.trajectory)
    assert pieces.prompts == whole.prompts


class RestartedClient(Client):
    """Its server is restarted before some of its steps: a coin of the step decides, which has another use too."""

    def __init__(self) -> None:
        super().__init__()
        self.trajectory = SavingTrajectory(policy=HistoryPolicy.KEEP, require_log_probs=True)

    def play(self, step: Step) -> None:
        assert isinstance(self.trajectory, SavingTrajectory)
        if step.handles[0]:
            before = shown(self.trajectory)
            self.trajectory = self.trajectory.rebuilt()
            assert shown(self.trajectory) == before
        super().play(step)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, min_size=1, max_size=12))
def test_random_clients_do_not_notice_a_restart(steps: list[Step]) -> None:
    client = RestartedClient()
    for step in steps:
        client.play(step)
    client.check_export()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=8))
def test_under_template_policy_too(turns: list[tuple[int, int, bool]]) -> None:
    trajectory = SavingTrajectory(policy=HistoryPolicy.TEMPLATE)
    history: list[dict[str, str]] = []
    for number, (user, reply, fresh) in enumerate(turns):
        history = [] if fresh else history
        history = [*history, {"role": "user", "content": f"u{user}"}]
        answer = {"role": "assistant", "content": f"a{reply}"}
        prompt = [ord(letter) for message in history for letter in message["content"]]
        plan = trajectory.match(history)
        trajectory.commit(plan, TurnRecord(prompt, [7, number], [-1.0, -2.0]), answer, number=number)
        history = [*history, answer if user else {**answer, "content": answer["content"] + "!"}]
        trajectory = trajectory.rebuilt()
    other = trajectory.rebuilt()
    assert shown(other) == shown(trajectory)


def test_turns_that_do_not_fit_are_an_error() -> None:
    player = Player(SavingTrajectory(policy=HistoryPolicy.KEEP))
    player.play("u20 -> a30; u20 a30 u21 -> a31")
    assert isinstance(player.trajectory, SavingTrajectory)
    del player.trajectory.journal[0]
    with pytest.raises(TrajectoryDamaged):
        player.trajectory.rebuilt()


def test_a_saved_turn_holds_only_what_is_new() -> None:
    player = Player(SavingTrajectory(policy=HistoryPolicy.KEEP))
    history, sizes = "u20", []
    for number in range(60):
        player.play(f"{history} -> a{300 + number}")
        history += f" a{300 + number} u{20 + number % 9}"
        assert isinstance(player.trajectory, SavingTrajectory)
        sizes.append(len(player.trajectory.journal[-1]))
    assert max(sizes[1:]) - min(sizes[1:]) < 100


def test_what_save_raises_leaves_the_trajectory_alone() -> None:
    class Full(Exception):
        pass

    def refuse(saved: SavedTurn) -> None:
        raise Full

    trajectory = Trajectory(policy=HistoryPolicy.KEEP)
    plan = trajectory.match([{"role": "user", "content": "u"}])
    record = TurnRecord([1], [2], [-1.0])
    before = shown(trajectory)
    with pytest.raises(Full):
        trajectory.commit(plan, record, {"role": "assistant", "content": "a"}, save=refuse)
    with pytest.raises(Full):
        trajectory.record_interrupted(plan, record, {"role": "assistant", "content": "a"}, save=refuse)
    assert shown(trajectory) == before
