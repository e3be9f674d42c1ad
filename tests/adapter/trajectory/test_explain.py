"""Explanations: what is said of each turn."""

from __future__ import annotations

import json
from dataclasses import replace

from adapter.trajectory import Head, Trajectory, TurnExplanation
from adapter.types import HistoryPolicy, Label, LabelKind, Normalised, ScaffoldKind, ScaffoldSpan
from tests.adapter.trajectory.alphabet import ids, message, record, turn
from tests.adapter.trajectory.keeping import Player, played


def counts(explained: TurnExplanation) -> tuple[int | None, int, int, int, int]:
    """Base turn, then tokens: reused, rendered, scaffold, sampled."""
    return explained.base_turn, explained.reused, explained.rendered, explained.scaffold, explained.sampled


def test_what_a_kept_session_is_made_of() -> None:
    player = played("s10 u20 -> a30 !length; s10 u20 a30 u21 -> a31; s10 u20 a30 u21 -> a32; s10 u22 -> a33")
    assert [counts(each) for each in player.trajectory.explain()] == [
        (None, 0, 7, 0, 1),
        (1, 8, 5, 2, 2),
        (1, 8, 5, 2, 2),
        (None, 0, 7, 0, 2),
    ]
    assert [each.divergence for each in player.trajectory.explain()] == [None] * 4
    assert [each.number for each in player.trajectory.explain()] == [1, 2, 3, 4]


def test_a_new_head_renders_its_opening_and_the_new_messages() -> None:
    player = played("T1 | s10 u20 -> c30; T1 | s10 u20 c30 t40 -> c31; T2 | s10 u20 c30 t40 c31 t41 -> a32")
    forked = player.trajectory.explain()[2]
    assert counts(forked) == (2, len(ids("30 5 4 40 5 3 31 5")), len(ids("92 P 4 41 5 3")), 1, 2)
    assert forked.head == Head.of([{"name": "2"}])
    assert forked.divergence is not None
    assert (forked.divergence.turn_index, forked.divergence.position) == (2, 0)
    assert (forked.divergence.known[:2], forked.divergence.sent[:2]) == ((91, 1), (92, 1))


def test_an_edit_shows_where_the_prompt_departs() -> None:
    player = played("s10 u20 -> a30; s10 u20 a30 u21 -> a31; s10 u20 a30 u21 a36 u22 -> a32")
    divergence = player.trajectory.explain()[2].divergence
    assert divergence is not None
    assert divergence.to_dict() == {
        "turn_index": 2,
        "position": len(ids("P 30 5 2 21 5 3")),
        "before": ids("20 5 3 30 5 2 21 5 3")[1:],
        "known": [31, 5],
        "sent": [36, 5, 2, 22, 5, 3],
    }


def test_differences_are_told_when_they_first_appear() -> None:
    player = played(
        "s10 u20 -> c30:think; s10 u20 c30#1 t40 -> c31:think; s10 u20 c30#1 t40 c31:keys#2 t41 -> a32;"
        "s10 u20 c30:pad t40 c31#2 t41 a32#3 u21 -> a33"
    )
    told = [
        [(each.index, str(each.reason), each.turn_index) for each in e.findings] for e in player.trajectory.explain()
    ]
    assert told == [
        [],
        [(2, "handle", 1)],
        [(4, "handle", 2)],
        [(2, "tolerant:whitespace", 1)],
    ]
    assert [str(each) for each in player.trajectory.explain()[3].findings[0].differences] == ["thinking", "whitespace"]


def test_under_template_the_base_is_what_the_prompt_departs_from() -> None:
    trajectory = Trajectory()
    record(
        trajectory,
        "s10 u20 -> a30; s10 u20 a30 t40 -> a31; s10 u20 a30 t40 a31 t41 [P 30 99 4 40 5 3] -> a32; s10 u21 -> a33;"
        "s10 u21 a38 t40 -> a34",
    )
    explained = trajectory.explain()
    assert [(each.turn_index, str(each.reason)) for each in explained] == [
        (1, "new"),
        (2, "exact"),
        (3, "fork:template"),
        (5, "fork:edit"),
    ], "the fourth turn was merged away"
    assert counts(explained[2]) == (2, 8, 5, 0, 2)
    divergence = explained[2].divergence
    assert divergence is not None
    assert (divergence.turn_index, divergence.position, divergence.known[0], divergence.sent[0]) == (2, 8, 5, 99)


def test_under_template_dropped_thinking_is_named() -> None:
    trajectory = Trajectory()
    first = turn("s10 u20 -> a30 = 70 30 5")
    thought = {**message("a30"), "reasoning_content": "70"}
    trajectory.record_turn(turn=first.record(), prompt_messages=first.prompt_messages, response_message=thought)
    second = turn("s10 u20 a30 u21 -> a31")
    trajectory.record_turn(
        turn=second.record(),
        prompt_messages=[*first.prompt_messages, thought, message("u21")],
        response_message=message("a31"),
    )
    assert [str(each.reason) for each in trajectory.explain()] == ["new", "fork:thinking"]


def test_what_the_caller_said_of_the_turn_is_kept_and_shared() -> None:
    trajectory = Trajectory(policy=HistoryPolicy.KEEP)
    said = {
        "label": Label(LabelKind.SUBAGENT, "agent-7", "main"),
        "normalised": (Normalised("rule", "system.0.text", "volatile"),),
    }
    for text in ("s10 u20 -> a30", "s10 u20 a30 u21 -> a31"):
        each = turn(text)
        trajectory.commit(
            trajectory.match(each.prompt_messages),
            each.record(
                **{name: replace(value) if name == "label" else (replace(value[0]),) for name, value in said.items()}
            ),
            each.response_message,
        )
    first, second = trajectory.explain()
    assert (second.label, second.normalised) == (said["label"], said["normalised"])
    assert (second.label is first.label, second.normalised is first.normalised) == (True, True)
    told = json.loads(json.dumps(second.to_dict()))
    assert told["label"] == {"kind": "subagent", "agent": "agent-7", "parent": "main"}
    assert told["normalised"] == [{"rule": "rule", "field": "system.0.text", "original": "volatile"}]
    assert told["tokens"] == {"reused": 9, "rendered": 4, "scaffold": 0, "sampled": 2}
    assert (told["reason"], told["base_turn"], told["policy"]) == ("exact", 1, "keep")


def test_scaffold_spans_lie_over_what_is_new_of_the_prompt() -> None:
    """They come as spans over what was rendered; a prompt rendered as a whole is held from where it departs."""
    trajectory = Trajectory()
    record(trajectory, "s10 u20 -> a30")
    spans = (
        ScaffoldSpan(0, 2, ScaffoldKind.GENERATION_PROMPT),
        ScaffoldSpan(8, 10, ScaffoldKind.CLOSE),
        ScaffoldSpan(12, 13, ScaffoldKind.GENERATION_PROMPT),
    )
    each = turn("s10 u20 a30 t40 -> a31")
    generation = trajectory.commit(
        trajectory.match(each.prompt_messages), each.record(scaffold=spans), each.response_message
    )
    assert generation.scaffold == (
        ScaffoldSpan(0, 1, ScaffoldKind.CLOSE),
        ScaffoldSpan(3, 4, ScaffoldKind.GENERATION_PROMPT),
    )


def test_explanations_are_json() -> None:
    player = Player()
    player.play("T1 | s10 u20 -> c30:think; T2 | s10 u20 c30 t40 -> a31; T2 | s10 u20 c30 t40 a35 u21 -> a32")
    for each in player.trajectory.explain():
        assert json.loads(json.dumps(each.to_dict()))["turn_index"] == each.turn_index
