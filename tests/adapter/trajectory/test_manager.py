"""The Python API: many sessions by id."""

from __future__ import annotations

import pytest

from adapter.trajectory import Ledger, LedgerMismatch, Sample, TrajectoryManager, TurnRecord, TurnRejected
from tests.adapter.trajectory.alphabet import check_samples, ids, message, messages, turn


def record_in(manager: TrajectoryManager, sid: str, text: str) -> None:
    each = turn(text)
    manager.record_turn(
        sid, turn=each.record(), prompt_messages=each.prompt_messages, response_message=each.response_message
    )


def test_two_sessions_are_apart() -> None:
    """Case 1.9."""
    manager = TrajectoryManager()
    record_in(manager, "x", "s10 u20 -> a30")
    record_in(manager, "y", "s10 u21 -> a31")
    assert [len(manager.paths(sid)) for sid in "xy"] == [1, 1]
    check_samples(manager.get_trajectory("x", base_sample=Sample(), reward=1.0), ["P | [30] [5]"])
    assert (manager.has_session("x"), manager.has_session("y")) == (False, True)
    check_samples(manager.get_trajectory("y", base_sample=Sample(), reward=1.0), ["1 10 5 2 21 5 3 | [31] [5]"])


def test_a_session_is_drained() -> None:
    """Case 2.12."""
    manager = TrajectoryManager()
    record_in(manager, "x", "s10 u20 -> a30")
    assert manager.has_session("x")
    assert len(manager.get_trajectory("x", base_sample=Sample(), reward=1.0)) == 1
    assert not manager.has_session("x")
    assert manager.get_trajectory("x", base_sample=Sample(), reward=1.0) == []
    assert (manager.turn_count("x"), manager.paths("x"), manager.trajectory("x")) == (0, [], None)


def test_turns_are_counted() -> None:
    manager = TrajectoryManager()
    assert manager.turn_count("x") == 0
    record_in(manager, "x", "s10 u20 -> a30")
    record_in(manager, "x", "s10 u20 a30 t40 -> a31")
    assert manager.turn_count("x") == 2


def test_without_prompt_messages_nothing_happens() -> None:
    """Case 4.3."""
    manager = TrajectoryManager()
    manager.record_turn("x", turn=TurnRecord([1], [30]), prompt_messages=[], response_message=message("a30"))
    assert (manager.turn_count("x"), manager.paths("x"), manager.has_session("x")) == (0, [], False)


def test_base_sample_is_required() -> None:
    """Case 4.4."""
    manager = TrajectoryManager()
    record_in(manager, "x", "s10 u20 -> a30")
    with pytest.raises(TypeError, match="base_sample"):
        manager.get_trajectory("x", reward=1.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        manager.get_trajectory("x", Sample(), reward=1.0)  # type: ignore[misc]
    assert manager.has_session("x")


def test_wrong_counts_are_an_assertion_error() -> None:
    """Case 4.2. A session does not begin with a turn that was refused."""
    manager = TrajectoryManager()
    with pytest.raises(AssertionError, match="output_log_probs"):
        manager.record_turn(
            "x",
            turn=TurnRecord(ids("P"), [30, 31, 5], [-0.5, -0.5]),
            prompt_messages=messages("s10 u20"),
            response_message=message("a30"),
        )
    assert not manager.has_session("x")


def test_required_log_probs() -> None:
    manager = TrajectoryManager(require_log_probs=True)
    with pytest.raises(TurnRejected, match="output_log_probs"):
        manager.record_turn(
            "x",
            turn=TurnRecord(prompt_ids=ids("P"), output_ids=[30, 5], finish_reason="stop"),
            prompt_messages=messages("s10 u20"),
            response_message=message("a30"),
        )


def test_the_threshold_is_handed_down() -> None:
    samples = {}
    for threshold in (1, 1024, None):
        manager = TrajectoryManager(fork_threshold_tokens=threshold)
        record_in(manager, "x", "s10 u20 -> a30")
        record_in(manager, "x", "s10 u20 a35 t40 -> a31")
        samples[threshold] = len(manager.get_trajectory("x", base_sample=Sample()))
    assert samples == {1: 2, 1024: 1, None: 1}


def test_a_dropped_session_is_forgotten() -> None:
    manager = TrajectoryManager()
    record_in(manager, "x", "s10 u20 -> a30")
    manager.drop_session("x")
    manager.drop_session("never seen")
    assert not manager.has_session("x")


def test_export_gives_the_ledger_too() -> None:
    manager = TrajectoryManager()
    record_in(manager, "x", "s10 u20 -> a30")
    record_in(manager, "x", "s10 u20 a35 t40 -> a31")
    made = manager.export("x", base_sample=Sample(), reward=1.0)
    check_samples(made.samples, ["P 35 5 4 40 5 3 | [31] [5]"])
    assert made.ledger == Ledger(4, 2, {"rewritten": 2})
    assert manager.export("x", base_sample=Sample()).ledger == Ledger(0, 0, {})


def test_a_session_that_cannot_be_exported_is_not_lost() -> None:
    manager = TrajectoryManager()
    record_in(manager, "x", "s10 u20 -> a30")
    trajectory = manager.trajectory("x")
    assert trajectory is not None
    trajectory.sampled_tokens += 1
    with pytest.raises(LedgerMismatch):
        manager.get_trajectory("x", base_sample=Sample())
    assert manager.has_session("x")


def test_metadata_of_a_turn_is_kept() -> None:
    manager = TrajectoryManager()
    each = turn("s10 u20 -> a30")
    manager.record_turn(
        "x",
        turn=each.record(),
        prompt_messages=each.prompt_messages,
        response_message=each.response_message,
        metadata={"sid": "x"},
    )
    trajectory = manager.trajectory("x")
    assert trajectory is not None
    assert next(trajectory.chains())[-1].metadata == {"sid": "x"}
