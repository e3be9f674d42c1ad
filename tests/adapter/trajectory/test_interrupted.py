"""Replies that were cut off: nothing of them counts until a client replays a part, and then that part counts once.

``-x a30.31.32`` samples ``30 31 32`` and is then cut off.
"""

from __future__ import annotations

import numpy as np
import pytest

from adapter.trajectory import PromptMismatch, Sample, Trajectory, TurnRecord
from adapter.types import HistoryPolicy, ScaffoldKind, ScaffoldSpan, VersionSpan
from tests.adapter.trajectory.alphabet import check_samples, export, ids, message, messages, record, turn
from tests.adapter.trajectory.keeping import Player, keep_message, played, recut

CUT = "s10 u20 -x a30.31.32"

CASES = [
    ("nothing of it is replayed", f"{CUT}; s10 u20 -> a33", "new", ["P | [33] [5]"], 3),
    (
        "a part is replayed",
        f"{CUT}; s10 u20 a30.31 u21 -> a33",
        "new interrupted",
        ["P | [30] [31] 5 2 21 5 3 [33] [5]"],
        1,
    ),
    (
        "all of it",
        f"{CUT}; s10 u20 a30.31.32 u21 -> a33",
        "new interrupted",
        ["P | [30] [31] [32] 5 2 21 5 3 [33] [5]"],
        0,
    ),
    ("trimmed", f"{CUT}; s10 u20 a30.31:pad u21 -> a33", "new interrupted", ["P | [30] [31] 5 2 21 5 3 [33] [5]"], 1),
    (
        "what was replayed is a turn like any other from then on",
        f"{CUT}; s10 u20 a30.31 u21 -> a33; s10 u20 a30.31:pad#1 u21 a33 u22 -> a34; s10 u20 a30.31#1 u23 -> a35",
        "new interrupted handle exact",
        ["P | [30] [31] 5 2 21 5 3 [33] [5] 2 22 5 3 [34] [5]", "P | 30 31 5 2 23 5 3 [35] [5]"],
        1,
    ),
    (
        "a tool call that was complete is run, and its result sent",
        "s10 u20 -x c30.31; s10 u20 c30.31 t40 -> a33",
        "new interrupted",
        ["P | [30] 5 4 40 5 3 [33] [5]"],
        1,
    ),
    (
        "a tool call that was not complete comes back empty",
        "s10 u20 -x c30.31; s10 u20 c30.31:none t40 -> a33",
        "new interrupted",
        ["P | [30] 5 4 40 5 3 [33] [5]"],
        1,
    ),
    (
        "no token boundary: it is a message of the client's",
        f"{CUT}; s10 u20 a30.3 u21 -> a33",
        "new",
        ["1 10 5 2 20 5 3 30 3 5 2 21 5 3 | [33] [5]"],
        3,
    ),
    (
        "another text",
        f"{CUT}; s10 u20 a38 u21 -> a33",
        "new",
        ["1 10 5 2 20 5 3 38 5 2 21 5 3 | [33] [5]"],
        3,
    ),
    (
        "behind known turns",
        "s10 u20 -> c30; s10 u20 c30 t40 -x a31.32.33; s10 u20 c30 t40 a31 u21 -> a34",
        "new exact interrupted",
        ["P | [30] [5] 4 40 5 3 [31] 5 2 21 5 3 [34] [5]"],
        2,
    ),
    (
        "the history is mangled too",
        "s10 u20 -> c30:think; s10 u20 c30 t40 -x a31.32.33; s10 u20 c30#1 t40:pad a31 u21 -> a34",
        "new tolerant:thinking interrupted",
        ["P | [30] [5] 4 40 5 3 [31] 5 2 21 5 3 [34] [5]"],
        2,
    ),
    (
        "another history: it was not that reply",
        f"{CUT}; s10 u29 a30.31 u21 -> a33",
        "new",
        ["1 10 5 2 29 5 3 30 31 5 2 21 5 3 | [33] [5]"],
        3,
    ),
    (
        "sampled anew: the same text is the complete turn's",
        f"{CUT}; s10 u20 -> a30.31; s10 u20 a30.31 u21 -> a33",
        "new exact",
        ["P | [30] [31] [5] 2 21 5 3 [33] [5]"],
        3,
    ),
    (
        "sampled anew: the handle says that the part is meant",
        f"{CUT}; s10 u20 -> a30.31; s10 u20 a30.31#1 u21 -> a33",
        "new new interrupted",
        ["P | [30] [31] [5]", "P | [30] [31] 5 2 21 5 3 [33] [5]"],
        1,
    ),
    (
        "cut off twice: the latest that fits",
        "s10 u20 -x a30.31; s10 u20 -x a30.32; s10 u20 a30 u21 -> a33; s10 u20 a30.31#1 u22 -> a34",
        "new interrupted new interrupted",
        ["P | [30] 5 2 21 5 3 [33] [5]", "P | [30] [31] 5 2 22 5 3 [34] [5]"],
        1,
    ),
    (
        "a turn that goes on from a part is cut off as well",
        f"{CUT}; s10 u20 a30.31 u21 -x a33.34; s10 u20 a30.31 u21 a33 u22 -> a35",
        "new interrupted interrupted",
        ["P | [30] [31] 5 2 21 5 3 [33] 5 2 22 5 3 [35] [5]"],
        2,
    ),
    (
        "a part that was replayed counts, whatever becomes of the turn that goes on from it",
        f"{CUT}; s10 u20 a30.31 u21 -x a33.34",
        "new",
        ["P | [30] [31]"],
        3,
    ),
    (
        "behind another head",
        "T1 | s10 u20 -> c30; T2 | s10 u20 c30 t40 -x a31.32; T2 | s10 u20 c30 t40 a31 u21 -> a33",
        "new fork:tools interrupted",
        ["91 P | [30] [5]", "92 P 30 5 4 40 5 3 | [31] 5 2 21 5 3 [33] [5]"],
        1,
    ),
    (
        "replayed under another head: it was not interrupted there",
        f"T1 | {CUT}; T2 | s10 u20 a30.31 u21 -> a33",
        "new",
        ["92 P 30 31 5 2 21 5 3 | [33] [5]"],
        3,
    ),
]


@pytest.mark.parametrize(
    ("turns", "reasons", "samples", "dropped"), [pytest.param(*case, id=name) for name, *case in CASES]
)
def test_turns_become_reasons_and_samples(turns: str, reasons: str, samples: list[str], dropped: int) -> None:
    player = played(turns)
    assert player.reasons == reasons
    made = export(player.trajectory)
    check_samples(made.samples, samples)
    assert made.ledger.dropped == ({"interrupted": dropped} if dropped else {})
    assert player.trajectory.interrupted_tokens == dropped


def test_an_interrupted_reply_is_no_turn() -> None:
    player = played(f"s10 u20 -> a30; s10 u20 a30 u21 -x a31.32; {CUT}")
    assert (player.trajectory.turn_count, player.trajectory.sampled_tokens) == (1, 2 + 2 + 3)
    assert [[entry["role"] for entry in path] for path in player.trajectory.paths()] == [
        ["system", "user", "assistant"]
    ]
    assert [each.turn_index for each in player.trajectory.explain()] == [1]
    check_samples(export(player.trajectory).samples, ["P | [30] [5]"])


def test_nothing_sampled_is_nothing_kept() -> None:
    player = Player()
    plan = player.ask("s10 u20")
    player.trajectory.record_interrupted(plan, TurnRecord(ids("P"), [], None), message("a30"), number=1)
    assert (player.trajectory.sampled_tokens, player.trajectory.interrupted_tokens) == (0, 0)
    assert player.ask("s10 u20 a30 u21").adoption is None


def test_the_part_keeps_what_belongs_to_its_tokens() -> None:
    trajectory = Trajectory(policy=HistoryPolicy.KEEP, require_log_probs=True)
    plan = trajectory.match(messages("s10 u20"))
    cut = TurnRecord(
        ids("P"),
        [30, 31, 32],
        [-0.5, -0.25, -0.125],
        "cancelled",
        versions=(VersionSpan(0, 1, 7), VersionSpan(1, 3, 8)),
    )
    trajectory.record_interrupted(plan, cut, keep_message("a30.31.32"), number=4)
    plan = trajectory.match([*messages("s10 u20"), keep_message("a30.31"), message("u21")], recut=recut)
    assert plan.known_ids().tolist() == ids("P 30 31")
    generation = trajectory.commit(plan, TurnRecord(ids("P 30 31 5 2 21 5 3"), [33], [-1]), message("a33"))
    part = generation.base
    assert part is not None
    assert (part.turn_index, part.number, part.finish_reason) == (1, 4, "interrupted")
    assert (part.output.tolist(), part.versions) == ([30, 31], (VersionSpan(0, 1, 7), VersionSpan(1, 2, 8)))
    assert part.log_probs is not None
    assert np.array_equal(part.log_probs, np.array([-0.5, -0.25], np.float32))
    assert (generation.turn_index, trajectory.turn_count) == (2, 2)
    (sample,) = trajectory.export(base_sample=Sample()).samples
    assert sample.loss_mask == [1, 1, 0, 0, 0, 0, 0, 1]


SPANS = (ScaffoldSpan(0, 1, ScaffoldKind.CLOSE), ScaffoldSpan(3, 4, ScaffoldKind.GENERATION_PROMPT))


def test_the_part_keeps_its_scaffold() -> None:
    """Spans count from what was rendered last, and are held over what is new."""
    player = played("T1 | s10 u20 -> a30 !length; T2 | s10 u20 a30 u21 -x a31.32; T2 | s10 u20 a30 u21 a31 u22 -> a33")
    (_, *chain) = player.trajectory.chains()
    part = chain[0][-3].generation
    assert part is not None
    assert (part.given.tolist(), part.finish_reason) == (ids("5 2 21 5 3"), "interrupted")
    assert part.scaffold == (ScaffoldSpan(0, 1, ScaffoldKind.CLOSE), ScaffoldSpan(4, 5, ScaffoldKind.GENERATION_PROMPT))


def test_under_template_the_part_keeps_its_scaffold() -> None:
    trajectory = Trajectory()
    record(trajectory, "s10 u20 -> a30")
    whole = tuple(ScaffoldSpan(span.start + 9, span.end + 9, span.kind) for span in SPANS)
    cut = turn("s10 u20 a30 t40 -> a31 = 31 32").record(scaffold=whole)
    trajectory.record_interrupted(trajectory.match(messages("s10 u20 a30 t40")), cut, keep_message("a31.32"))
    asked = turn("s10 u20 a30 t40 a31 u21 -> a33")
    plan = trajectory.match(asked.prompt_messages, recut=recut)
    part = trajectory.commit(plan, asked.record(), asked.response_message).base
    assert part is not None
    assert (part.output.tolist(), part.given.tolist(), part.scaffold) == ([31], ids("4 40 5 3"), SPANS)


def test_two_requests_take_up_different_parts() -> None:
    """Both were matched before either was committed: the first to be committed trains, the other has it as context."""
    player = played(CUT)
    texts = ["s10 u20 a30.31 u21", "s10 u20 a30 u22", "s10 u20 a30.31 u23"]
    plans = [player.ask(text) for text in texts]
    for plan, text, reply in zip(plans, texts, ["a33", "a34", "a35"], strict=True):
        player.answer(text, plan, reply)
    made = export(player.trajectory)
    check_samples(
        made.samples,
        [
            "P | [30] [31] 5 2 21 5 3 [33] [5]",
            "P | 30 31 5 2 23 5 3 [35] [5]",
            "P 30 5 2 22 5 3 | [34] [5]",
        ],
    )
    assert made.ledger.dropped == {"interrupted": 1}


def test_a_wrong_prompt_takes_nothing_up() -> None:
    player = played(CUT)
    plan = player.ask("s10 u20 a30.31 u21")
    with pytest.raises(PromptMismatch):
        player.trajectory.commit(plan, TurnRecord(ids("P 30 32 5 2 21 5 3"), [33], [-1]), message("a33"))
    assert (player.trajectory.turn_count, player.trajectory.interrupted_tokens) == (0, 3)


@pytest.mark.parametrize("tokens", [None, 0, 4])
def test_a_part_that_cannot_be_cut_is_not_taken_up(tokens: int | None) -> None:
    player = played(CUT)
    plan = player.trajectory.match(
        [*messages("s10 u20"), keep_message("a30.31"), message("u21")], recut=lambda turn, message: tokens
    )
    assert (plan.adoption, plan.reason) == (None, "new")


def test_under_template_a_part_becomes_a_turn_too() -> None:
    trajectory = Trajectory()
    plan = trajectory.match(messages("s10 u20"))
    cut = TurnRecord(ids("P"), [30, 31, 32], [-30 / 64, -31 / 64, -32 / 64])
    trajectory.record_interrupted(plan, cut, keep_message("a30.31.32"))
    trajectory.record_turn(
        turn=TurnRecord(ids("1 11 5 3"), [36, 5], [-36 / 64, -5 / 64]),
        prompt_messages=messages("s11"),
        response_message=message("a36"),
    )
    conversation = [*messages("s10 u20"), keep_message("a30.31"), message("u21")]
    plan = trajectory.match(conversation, recut=recut)
    trajectory.commit(plan, TurnRecord(ids("P 30 31 5 2 21 5 3"), [33, 5], [-33 / 64, -5 / 64]), message("a33"))
    made = export(trajectory)
    check_samples(made.samples, ["1 11 5 3 | [36] [5]", "P | [30] [31] 5 2 21 5 3 [33] [5]"])
    assert made.ledger.dropped == {"interrupted": 1}


def test_under_template_a_part_is_placed_in_the_tree_as_it_is_by_then() -> None:
    """What the cut reply followed was rewritten before a client came back to it."""
    trajectory = Trajectory()
    record(trajectory, "s10 u20 -> a30")
    cut = turn("s10 u20 a30 t40 -> a31 = 31 32").record()
    trajectory.record_interrupted(trajectory.match(messages("s10 u20 a30 t40")), cut, keep_message("a31.32"))
    record(trajectory, "s10 u20 a35 -> a36")
    asked = turn("s10 u20 a30 t40 a31 u21 -> a33")
    trajectory.commit(trajectory.match(asked.prompt_messages, recut=recut), asked.record(), asked.response_message)
    assert [[entry["message"]["content"] for entry in path] for path in trajectory.paths()] == [
        ["s10", "u20", "a35", "a36"],
        ["s10", "u20", "a30", "t40", "a31", "u21", "a33"],
    ]
    made = export(trajectory)
    check_samples(made.samples, ["P 35 5 3 | [36] [5]", "P 30 5 4 40 5 3 | [31] 5 2 21 5 3 [33] [5]"])
    assert made.ledger.dropped == {"rewritten": 2, "interrupted": 1}


def test_under_template_an_interrupted_rewrite_leaves_no_trace() -> None:
    """The baseline merges a rewritten reply away; a request that came to nothing must not."""
    trajectory = Trajectory()
    trajectory.record_turn(
        turn=TurnRecord(ids("P"), [30, 5], [-30 / 64, -5 / 64]),
        prompt_messages=messages("s10 u20"),
        response_message=message("a30"),
    )
    before = trajectory.paths()
    plan = trajectory.match(messages("s10 u20 a35 t40"))
    assert plan.merge is not None
    trajectory.record_interrupted(plan, TurnRecord(ids("P 35 5 4 40 5 3"), [31], [-1]), message("a31"))
    assert trajectory.paths() == before
    check_samples(export(trajectory).samples, ["P | [30] [5]"])
