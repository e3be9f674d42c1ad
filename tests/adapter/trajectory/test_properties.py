"""What holds for every sequence of turns, whatever clients and templates do to the history."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapter.trajectory import Generation, Sample, Trajectory, TrajectoryManager, TurnRecord
from adapter.types import Message
from tests.adapter.trajectory.alphabet import export, message, render
from tests.adapter.trajectory.reference import Reference

WORDS = st.sampled_from(["s10", "u20", "u21", "t40", "t41", "a35", "a38"])
OUTPUTS = st.sampled_from([[30, 5], [31, 5], [30], [31, 30, 5], [], [30, 31, 32, 5]])


@dataclass(frozen=True)
class Step:
    """One turn as drawn: whose history it goes on from, and what is done to it."""

    parent: int
    drop: int
    edit: bool
    new: list[str]
    output: list[int]
    reply: str | None
    exact: bool
    drift: tuple[str, int] | None
    log_probs: bool


STEPS = st.builds(
    Step,
    parent=st.integers(0, 7),
    drop=st.sampled_from([0, 0, 0, 1, 2]),
    edit=st.sampled_from([False, False, False, True]),
    new=st.lists(WORDS, max_size=2),
    output=OUTPUTS,
    reply=st.sampled_from(["a30", "a31", "a30", "a31", None]),
    exact=st.booleans(),
    drift=st.one_of(
        st.none(), st.tuples(st.sampled_from(["insert", "replace", "delete", "truncate"]), st.integers(0, 12))
    ),
    log_probs=st.booleans(),
)
SESSIONS = st.lists(STEPS, min_size=1, max_size=8)
THRESHOLDS = st.sampled_from([0, 1, 2, 3, 1024])

UNTIMED = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
"""How long an example takes depends on what else the machine does."""


@dataclass(frozen=True)
class DrawnTurn:
    prompt_messages: list[Message]
    response_message: Message | None
    record: TurnRecord


def played(steps: list[Step]) -> list[DrawnTurn]:
    """The turns that a session of these steps consists of."""
    made: list[DrawnTurn] = []
    for step in steps:
        parent = made[step.parent % len(made)] if made and step.parent < 7 else None
        history, exact = _history(parent)
        kept = history[: len(history) - step.drop]
        if step.edit and kept and kept[-1]["role"] == "assistant":
            kept[-1] = message("a35")
        conversation = [*kept, *map(message, step.new)] or [message("s10")]
        goes_on = step.exact and parent is not None and conversation[: len(history)] == history
        prompt = exact + render(conversation[len(history) :]) if goes_on else render(conversation)
        record = TurnRecord(
            _drifted(prompt, step.drift),
            step.output,
            [-token / 64 for token in step.output] if step.log_probs else None,
        )
        made.append(DrawnTurn(conversation, None if step.reply is None else message(step.reply), record))
    return made


def _history(parent: DrawnTurn | None) -> tuple[list[Message], list[int]]:
    if parent is None:
        return [], []
    reply = [] if parent.response_message is None else [parent.response_message]
    return [*parent.prompt_messages, *reply], [*parent.record.prompt_ids.tolist(), *parent.record.output_ids.tolist()]


def _drifted(prompt: list[int], drift: tuple[str, int] | None) -> list[int]:
    if drift is None:
        return prompt
    kind, back = drift
    at = max(0, len(prompt) - back)
    changed = {
        "insert": [*prompt[:at], 99, *prompt[at:]],
        "replace": [*prompt[:at], 99, *prompt[at + 1 :]],
        "delete": [*prompt[:at], *prompt[at + 1 :]],
        "truncate": prompt[:at],
    }
    return changed[kind]


def trajectory_of(turns: list[DrawnTurn], threshold: int) -> tuple[Trajectory, list[Generation]]:
    trajectory = Trajectory(threshold)
    generations = [
        trajectory.commit(trajectory.match(each.prompt_messages), each.record, each.response_message) for each in turns
    ]
    return trajectory, generations


@UNTIMED
@given(SESSIONS, THRESHOLDS)
def test_samples_are_those_of_the_plain_rules(steps: list[Step], threshold: int) -> None:
    turns = played(steps)
    reference = Reference(threshold)
    for each in turns:
        output = each.record.output_ids.tolist()
        log_probs = each.record.output_log_probs
        reference.record(
            each.record.prompt_ids.tolist(),
            output,
            [0.0] * len(output) if log_probs is None else log_probs.tolist(),
            each.prompt_messages,
            each.response_message,
        )
    made = export(trajectory_of(turns, threshold)[0]).samples
    assert [
        (each.tokens, len(each.tokens) - each.response_length, each.loss_mask, each.rollout_log_probs) for each in made
    ] == reference.samples()


@UNTIMED
@given(SESSIONS, THRESHOLDS)
def test_ids_are_exactly_what_was_recorded(steps: list[Step], threshold: int) -> None:
    turns = played(steps)
    trajectory, generations = trajectory_of(turns, threshold)
    for each, generation in zip(turns, generations, strict=True):
        recorded = each.record.prompt_ids.tobytes() + each.record.output_ids.tobytes()
        assert generation.ids().tobytes() == recorded
        assert generation.prompt_ids().tobytes() == each.record.prompt_ids.tobytes()
    for chain in trajectory.chains():
        generated = [node.generation for node in chain if node.generation is not None]
        assert [each.base for each in generated] == [None, *generated[:-1]][: len(generated)]


@UNTIMED
@given(SESSIONS, THRESHOLDS, st.one_of(st.none(), st.integers(0, 40)))
def test_every_sampled_token_trains_at_most_once(steps: list[Step], threshold: int, limit: int | None) -> None:
    turns = played(steps)
    trajectory, _ = trajectory_of(turns, threshold)
    made = export(trajectory, max_sample_tokens=limit)
    trained: Counter[tuple[int, int]] = Counter()
    for sample in made.samples:
        prompt_len = len(sample.tokens) - sample.response_length
        assert limit is None or limit == 0 or len(sample.tokens) <= limit
        for span in sample.metadata["turns"]:
            output = turns[span["turn_index"] - 1].record.output_ids.tolist()
            held = sample.tokens[prompt_len + span["start"] : prompt_len + span["end"]]
            assert held == output[: len(held)], "a span names another turn's tokens"
            for offset, mask in enumerate(sample.loss_mask[span["start"] : span["end"]]):
                trained[span["turn_index"], offset] += mask
    assert set(trained.values()) <= {0, 1}
    assert trained.total() == made.ledger.trained
    assert made.ledger.sampled == sum(each.record.output_ids.size for each in turns)


@UNTIMED
@given(SESSIONS, THRESHOLDS)
def test_paths_hold_every_turn_that_was_not_rewritten(steps: list[Step], threshold: int) -> None:
    turns = played(steps)
    trajectory, _ = trajectory_of(turns, threshold)
    assert trajectory.turn_count == len(turns)
    held: dict[int, list[Message | None]] = {}
    for path in trajectory.paths():
        for depth, entry in enumerate(path):
            assert entry["has_generation_record"] == (entry["turn_index"] is not None)
            if entry["turn_index"] is not None:
                above = [each["message"] for each in path[: depth + 1]]
                assert held.setdefault(entry["turn_index"], above) == above
    for index, above in held.items():
        assert above == [*turns[index - 1].prompt_messages, turns[index - 1].response_message]
    merged = {
        node.metadata["merged_rewrite"]["abandoned_turn_index"]
        for chain in trajectory.chains()
        for node in chain
        if "merged_rewrite" in node.metadata
    }
    assert held.keys() | merged == set(range(1, len(turns) + 1))
    assert not held.keys() & merged


@UNTIMED
@given(SESSIONS, THRESHOLDS, st.integers(1, 4))
def test_plans_that_were_overtaken_make_no_difference(steps: list[Step], threshold: int, in_flight: int) -> None:
    """Turns are matched some commits before they are committed; the tree depends on the order of commits only."""
    turns = played(steps)
    late = Trajectory(threshold)
    for start in range(0, len(turns), in_flight):
        batch = turns[start : start + in_flight]
        plans = [late.match(each.prompt_messages) for each in batch]
        for plan, each in zip(plans, batch, strict=True):
            late.commit(plan, each.record, each.response_message)
    at_once, _ = trajectory_of(turns, threshold)
    assert late.paths() == at_once.paths()
    assert export(late) == export(at_once)


@UNTIMED
@given(SESSIONS, SESSIONS)
def test_draining_one_session_leaves_the_other(first: list[Step], second: list[Step]) -> None:
    manager, alone = TrajectoryManager(), TrajectoryManager()
    both = {"x": played(first), "y": played(second)}
    for sid, turns in both.items():
        for each in turns:
            told = {
                "turn": each.record,
                "prompt_messages": each.prompt_messages,
                "response_message": each.response_message,
            }
            manager.record_turn(sid, **told)
            if sid == "y":
                alone.record_turn(sid, **told)
    manager.get_trajectory("x", base_sample=Sample())
    assert not manager.has_session("x")
    assert manager.export("y", base_sample=Sample()) == alone.export("y", base_sample=Sample())
