"""Policy ``keep``, case by case: turns in, reasons and samples out. The notation is that of ``keeping``."""

from __future__ import annotations

from itertools import pairwise

import pytest

from adapter.trajectory import (
    Author,
    Head,
    PromptMismatch,
    Sample,
    Trajectory,
    TrajectoryManager,
    TurnRecord,
    TurnRejected,
)
from adapter.types import HistoryPolicy
from tests.adapter.trajectory.alphabet import check_samples, export, ids, message, messages, render
from tests.adapter.trajectory.keeping import Player, played

ONE_ROW = "P | [30] [5] 4 40 5 3 [31] [5]"
TWO_TURNS = "s10 u20 -> c30; s10 u20 c30 t40 -> a31"

RECOGNISED = [
    ("a replay as it was", "s10 u20 -> c30; s10 u20 c30 t40 -> a31", "new exact", [ONE_ROW]),
    ("by handle, as it was", "s10 u20 -> c30; s10 u20 c30#1 t40 -> a31", "new exact", [ONE_ROW]),
    ("thinking dropped", "s10 u20 -> c30:think; s10 u20 c30 t40 -> a31", "new tolerant:thinking", [ONE_ROW]),
    ("thinking dropped, by handle", "s10 u20 -> c30:think; s10 u20 c30#1 t40 -> a31", "new handle", [ONE_ROW]),
    ("white space trimmed", "s10 u20 -> a30:pad; s10 u20 a30 t40 -> a31", "new tolerant:whitespace", [ONE_ROW]),
    ("white space trimmed, by handle", "s10 u20 -> a30:pad; s10 u20 a30#1 t40 -> a31", "new handle", [ONE_ROW]),
    ("a blank text dropped", "s10 u20 -> c30:blank; s10 u20 c30 t40 -> a31", "new tolerant:whitespace", [ONE_ROW]),
    ("a text as blocks", "s10 u20 -> a30; s10 u20 a30:blocks t40 -> a31", "new tolerant:whitespace", [ONE_ROW]),
    ("keys in another order", "s10 u20 -> c30; s10 u20 c30:keys t40 -> a31", "new exact", [ONE_ROW]),
    ("a number as a float", "s10 u20 -> c30; s10 u20 c30:float t40 -> a31", "new exact", [ONE_ROW]),
    ("a number rounded to a double", "s10 u20 -> c30; s10 u20 c30:double t40 -> a31", "new tolerant:json", [ONE_ROW]),
    ("the same, by handle", "s10 u20 -> c30; s10 u20 c30:double#1 t40 -> a31", "new handle", [ONE_ROW]),
    (
        "several things at once: the most notable counts",
        "s10 u20 -> c30:think:pad; s10 u20 c30:double t40 -> a31",
        "new tolerant:json",
        [ONE_ROW],
    ),
    (
        "a client's own message with white space changed, before a reply",
        "s10 u20 -> c30; s10 u20:pad c30 t40 -> a31",
        "new tolerant:whitespace",
        [ONE_ROW],
    ),
    (
        "results of parallel calls in another order",
        "s10 u20 -> c30; s10 u20 c30 t40 t41 -> a31; s10 u20 c30 t41 t40 a31 u21 -> a32",
        "new exact tolerant:order",
        ["P | [30] [5] 4 40 5 4 41 5 3 [31] [5] 2 21 5 3 [32] [5]"],
    ),
    (
        "three results, one of them twice, trimmed",
        "s10 u20 -> c30; s10 u20 c30 t40 t41:pad t40 -> a31; s10 u20 c30 t41 t40 t40 a31 u21 -> a32",
        "new exact tolerant:order",
        ["P | [30] [5] 4 40 5 4 41 5 4 40 5 3 [31] [5] 2 21 5 3 [32] [5]"],
    ),
    (
        "a reply with nothing to see left out",
        "s10 u20 -> a30:think:blank; s10 u20 u21 -> a31; s10 u20 u21 a31 u22 -> a32",
        "new tolerant:whitespace tolerant:whitespace",
        ["P | [30] [5] 2 21 5 3 [31] [5] 2 22 5 3 [32] [5]"],
    ),
    (
        "every turn of a session",
        "s10 u20 -> c30:think; s10 u20 c30#1 t40 -> c31:think; s10 u20 c30#1 t40 c31#2 t41 -> a32:think;"
        "s10 u20 c30#1 t40 c31#2 t41 a32#3 u21 -> a33",
        "new handle handle handle",
        ["P | [30] [5] 4 40 5 3 [31] [5] 4 41 5 3 [32] [5] 2 21 5 3 [33] [5]"],
    ),
    (
        "a truncated turn is closed as scaffold",
        "s10 u20 -> a30 !length; s10 u20 a30 u21 -> a31",
        "new exact",
        ["P | [30] 5 2 21 5 3 [31] [5]"],
    ),
    (
        "an assistant message of the client's own behind the newest reply",
        "s10 u20 -> a30; s10 u20 a30 a38 t41 -> a31; s10 u20 a30 a38 t41 a31 u21 -> a32",
        "new exact exact",
        ["P | [30] [5] 3 38 5 4 41 5 3 [31] [5] 2 21 5 3 [32] [5]"],
    ),
    (
        "a conversation that the client brings along",
        "s10 u20 a38 u21 -> a31; s10 u20 a38 u21 a31 u22 -> a32",
        "new exact",
        ["1 10 5 2 20 5 3 38 5 2 21 5 3 | [31] [5] 2 22 5 3 [32] [5]"],
    ),
]

BRANCHES = [
    (
        "siblings",
        "s10 u20 -> a30; s10 u20 -> a31; s10 u20 a30 u21 -> a32; s10 u20 a31 u21 -> a33",
        "new new exact exact",
        ["P | [30] [5] 2 21 5 3 [32] [5]", "P | [31] [5] 2 21 5 3 [33] [5]"],
    ),
    (
        "equal siblings: the latest",
        "s10 u20 -> a30; s10 u20 -> a30; s10 u20 a30 u21 -> a31",
        "new new exact:ambiguous",
        ["P | [30] [5]", "P | [30] [5] 2 21 5 3 [31] [5]"],
    ),
    (
        "equal siblings: the one that the handle names",
        "s10 u20 -> a30; s10 u20 -> a30; s10 u20 a30#1 u21 -> a31",
        "new new exact",
        ["P | [30] [5] 2 21 5 3 [31] [5]", "P | [30] [5]"],
    ),
    (
        "equal siblings: the one under which the next reply is",
        "s10 u20 -> a30; s10 u20 -> a30; s10 u20 a30#1 u21 -> a31; s10 u20 a30 u21 a31 u22 -> a32",
        "new new exact exact",
        ["P | [30] [5] 2 21 5 3 [31] [5] 2 22 5 3 [32] [5]", "P | [30] [5]"],
    ),
    (
        "siblings that are alike after trimming: the next reply tells",
        "s10 u20 -> a30; s10 u20 -> a30:pad; s10 u20 a30#2 u21 -> a31; s10 u20 a30 u21 a31 u22 -> a32",
        "new new handle tolerant:whitespace",
        ["P | [30] [5]", "P | [30] [5] 2 21 5 3 [31] [5] 2 22 5 3 [32] [5]"],
    ),
    (
        "several alike: the latest",
        "s10 u20 -> a30:think; s10 u20 -> a30:think:pad; s10 u20 a30 u21 -> a31",
        "new new tolerant:ambiguous",
        ["P | [30] [5]", "P | [30] [5] 2 21 5 3 [31] [5]"],
    ),
    (
        "two answers of the client to one reply",
        "s10 u20 -> c30; s10 u20 c30 t40 -> a31; s10 u20 c30 t41 -> a32",
        "new exact exact",
        [ONE_ROW, "P | 30 5 4 41 5 3 [32] [5]"],
    ),
    (
        "new results that differ in white space only are new results",
        "s10 u20 -> c30; s10 u20 c30 t40 -> a31; s10 u20 c30 t40:pad -> a32; s10 u20 c30 t40:pad a32 u21 -> a33",
        "new exact exact exact",
        [ONE_ROW, "P | 30 5 4 40 5 3 [32] [5] 2 21 5 3 [33] [5]"],
    ),
    (
        "sub-agents between the turns of the main loop",
        "s10 u20 -> c30; s11 u23 -> c34; s10 u20 c30#1 t40 -> a31; s11 u23 c34#2 t44 -> a35; s11 u24 -> a36",
        "new new exact exact new",
        [ONE_ROW, "1 11 5 2 23 5 3 | [34] [5] 4 44 5 3 [35] [5]", "1 11 5 2 24 5 3 | [36] [5]"],
    ),
    (
        "compaction: the summary goes on, what follows it is new",
        "s10 u20 -> a30; s10 u20 a30 u25 -> a31; s10 u26 -> a32",
        "new exact new",
        ["P | [30] [5] 2 25 5 3 [31] [5]", "1 10 5 2 26 5 3 | [32] [5]"],
    ),
]

EDITS = [
    (
        "a reply with another text",
        "s10 u20 -> a30; s10 u20 a35 t40 -> a31",
        "new fork:edit",
        ["P | [30] [5]", "P 35 5 4 40 5 3 | [31] [5]"],
    ),
    (
        "a handle does not excuse an edit",
        "s10 u20 -> c30; s10 u20 c30:args#1 t40 -> a31",
        "new fork:edit",
        ["P | [30] [5]", "P 30 5 4 40 5 3 | [31] [5]"],
    ),
    (
        "1 is not true",
        "s10 u20 -> c30; s10 u20 c30:true#1 t40 -> a31",
        "new fork:edit",
        ["P | [30] [5]", "P 30 5 4 40 5 3 | [31] [5]"],
    ),
    (
        "an edited branch goes on as it is",
        "s10 u20 -> a30; s10 u20 a35 u21 -> a31; s10 u20 a35 u21 a31 u22 -> a32",
        "new fork:edit exact",
        ["P | [30] [5]", "P 35 5 2 21 5 3 | [31] [5] 2 22 5 3 [32] [5]"],
    ),
    (
        "an older reply: what comes before it is kept",
        "s10 u20 -> a30; s10 u20 a30 u21 -> a31; s10 u20 a30 u21 a36 u22 -> a32",
        "new exact fork:edit",
        ["P | [30] [5] 2 21 5 3 [31] [5]", "P | 30 5 2 21 5 3 36 5 2 22 5 3 [32] [5]"],
    ),
    (
        "an older result, with the replies after it",
        "s10 u20 -> c30; s10 u20 c30 t40 -> a31; s10 u20 c30 t49 a31 u22 -> a32",
        "new exact fork:edit",
        [ONE_ROW, "P | 30 5 4 49 5 3 31 5 2 22 5 3 [32] [5]"],
    ),
    (
        "the first user message, with a reply that a handle names",
        "s10 u20 -> a30; s10 u29 a30#1 u21 -> a31",
        "new fork:edit",
        ["P | [30] [5]", "1 10 5 2 29 5 3 30 5 2 21 5 3 | [31] [5]"],
    ),
    (
        "nothing is merged or given up, however short",
        "s10 u20 -> a30; s10 u20 a35 -> a31; s10 u20 a36 -> a32",
        "new fork:edit fork:edit",
        ["P | [30] [5]", "P 35 5 3 | [31] [5]", "P 36 5 3 | [32] [5]"],
    ),
]

HEADS = [
    (
        "tools changed: the head anew, then the ids as they were",
        "T1 | s10 u20 -> c30:think; T2 | s10 u20 c30#1 t40 -> a31; T2 | s10 u20 c30#1 t40 a31 u21 -> a32",
        "new fork:tools handle",
        ["91 P | [30] [5]", "92 P 30 5 4 40 5 3 | [31] [5] 2 21 5 3 [32] [5]"],
    ),
    (
        "tools changed after several turns",
        "T1 | s10 u20 -> c30; T1 | s10 u20 c30 t40 -> c31; T2 | s10 u20 c30 t40 c31 t41 -> a32",
        "new exact fork:tools",
        ["91 P | [30] [5] 4 40 5 3 [31] [5]", "92 P 30 5 4 40 5 3 31 5 4 41 5 3 | [32] [5]"],
    ),
    (
        "a branch from within what was spliced in",
        "T1 | s10 u20 -> c30; T1 | s10 u20 c30 t40 -> c31; T2 | s10 u20 c30 t40 c31 t41 -> a32;"
        "T2 | s10 u20 c30 t42 -> a33; T2 | s10 u20 c30 t42 a33 u21 -> a34",
        "new exact fork:tools exact exact",
        [
            "91 P | [30] [5] 4 40 5 3 [31] [5]",
            "92 P 30 5 4 40 5 3 31 5 4 41 5 3 | [32] [5]",
            "92 P 30 5 4 42 5 3 | [33] [5] 2 21 5 3 [34] [5]",
        ],
    ),
    (
        "back to the first tools: its row goes on, the turns in between are context there",
        "T1 | s10 u20 -> c30; T2 | s10 u20 c30 t40 -> c31; T1 | s10 u20 c30 t40 c31 t41 -> a32",
        "new fork:tools fork:tools",
        ["91 P | [30] [5] 4 40 5 3 31 5 4 41 5 3 [32] [5]", "92 P 30 5 4 40 5 3 | [31] [5]"],
    ),
    (
        "tools changed three times",
        "T1 | s10 u20 -> a30; T2 | s10 u20 a30 u21 -> a31; T3 | s10 u20 a30 u21 a31 u22 -> a32;"
        "T2 | s10 u20 a30 u21 a31 u22 a32 u23 -> a33",
        "new fork:tools fork:tools fork:tools",
        [
            "91 P | [30] [5]",
            "92 P 30 5 2 21 5 3 | [31] [5] 2 22 5 3 32 5 2 23 5 3 [33] [5]",
            "93 P 30 5 2 21 5 3 31 5 2 22 5 3 | [32] [5]",
        ],
    ),
    (
        "another system message",
        "s10 u20 -> a30; s11 u20 a30 u21 -> a31; s11 u20 a30 u21 a31 u22 -> a32",
        "new fork:system exact",
        ["P | [30] [5]", "1 11 5 2 20 5 3 30 5 2 21 5 3 | [31] [5] 2 22 5 3 [32] [5]"],
    ),
    (
        "no system message any more",
        "s10 u20 -> a30; u20 a30 u21 -> a31",
        "new fork:system",
        ["P | [30] [5]", "2 20 5 3 30 5 2 21 5 3 | [31] [5]"],
    ),
    (
        "other tools and another system message",
        "T1 | s10 u20 -> a30; T2 | s11 u20 a30 u21 -> a31",
        "new fork:tools",
        ["91 P | [30] [5]", "92 1 11 5 2 20 5 3 30 5 2 21 5 3 | [31] [5]"],
    ),
    (
        "a new conversation with other tools is just new",
        "T1 | s10 u20 -> a30; T2 | s10 u20 -> a31",
        "new new",
        ["91 P | [30] [5]", "92 P | [31] [5]"],
    ),
    (
        "two requests at once change the tools in the same way",
        "T1 | s10 u20 -> a30; T2 | s10 u20 a30 u21 -> a31; T2 | s10 u20 a30 u21 -> a32",
        "new fork:tools exact",
        ["91 P | [30] [5]", "92 P 30 5 2 21 5 3 | [31] [5]", "92 P 30 5 2 21 5 3 | [32] [5]"],
    ),
    (
        "a truncated turn is spliced in as it was",
        "T1 | s10 u20 -> a30 !length; T1 | s10 u20 a30 u21 -> a31; T2 | s10 u20 a30 u21 a31 u22 -> a32",
        "new exact fork:tools",
        ["91 P | [30] 5 2 21 5 3 [31] [5]", "92 P 30 5 2 21 5 3 31 5 2 22 5 3 | [32] [5]"],
    ),
]


@pytest.mark.parametrize(
    ("turns", "reasons", "samples"),
    [pytest.param(*case, id=name) for name, *case in RECOGNISED + BRANCHES + EDITS + HEADS],
)
def test_turns_become_reasons_and_samples(turns: str, reasons: str, samples: list[str]) -> None:
    player = played(turns)
    assert player.reasons == reasons
    made = export(player.trajectory)
    check_samples(made.samples, samples)
    assert made.ledger.dropped == {}


def test_heads_of_one_conversation_share_its_arrays() -> None:
    player = played("T1 | s10 u20 -> c30; T1 | s10 u20 c30 t40 -> c31; T2 | s10 u20 c30 t40 c31 t41 -> a32")
    (first, second), (third,) = (
        [node.generation for node in chain if node.generation] for chain in player.trajectory.chains()
    )
    copies = [node.copy for chain in player.trajectory.chains() for node in chain if node.copy]
    assert [copied.origin for copied in copies] == [first, second]
    assert copies[0].output is first.output
    assert (copies[1].given is second.given, copies[1].output is second.output) == (True, True)
    assert third.base is copies[1]
    assert third.ids().tolist() == ids("92 P 30 5 4 40 5 3 31 5 4 41 5 3 32 5")


def test_copies_of_copies_are_copies_of_turns() -> None:
    player = played(
        "T1 | s10 u20 -> a30; T2 | s10 u20 a30 u21 -> a31; T3 | s10 u20 a30 u21 a31 u22 -> a32;"
        "T1 | s10 u20 a30 u21 a31 u22 a32 u23 -> a33"
    )
    nodes = [node for chain in player.trajectory.chains() for node in chain]
    turns = [node.generation for node in nodes if node.generation]
    copies = [node.copy for node in nodes if node.copy]
    assert sorted(copied.turn_index for copied in copies) == [1, 1, 2, 2, 3]
    assert all(any(copied.origin is each for each in turns) for copied in copies)
    assert {node.author for node in nodes if node.message and node.message["role"] == "assistant"} == {Author.MODEL}
    assert {node.author for node in nodes if node.message and node.message["role"] != "assistant"} == {Author.CLIENT}


def test_copies_are_made_once() -> None:
    """Two requests with new tools were matched before either was committed; a template that shows the time renders one
    of the heads in another way."""
    player = played("T1 | s10 u20 -> c30")
    plans = [player.ask("s10 u20 c30 t40", "2") for _ in range(3)]
    for plan, opening, reply in zip(plans, ["92 P", "92 P", "98 P"], ["a31", "a32", "a33"], strict=True):
        number = int(reply[1:])
        record = TurnRecord(ids(f"{opening} 30 5 4 40 5 3"), [number, 5], [-number / 64, -5 / 64])
        player.trajectory.commit(plan, record, message(reply), opening_tokens=len(ids(opening)))
    nodes = {node for chain in player.trajectory.chains() for node in chain}
    assert len([node for node in nodes if node.copy]) == 2
    check_samples(
        export(player.trajectory).samples,
        [
            "91 P | [30] [5]",
            "92 P 30 5 4 40 5 3 | [31] [5]",
            "92 P 30 5 4 40 5 3 | [32] [5]",
            "98 P 30 5 4 40 5 3 | [33] [5]",
        ],
    )


def test_the_newest_head_is_what_a_new_one_is_compared_with() -> None:
    trajectory = Trajectory(policy=HistoryPolicy.KEEP)
    read, write = [{"name": "read"}], [{"name": "write"}]
    asked = "s10 u20"
    for head, reply in ((Head.of(read, "m"), "a30"), (Head.of(read, "n"), "a31")):
        plan = trajectory.match(messages(asked), head=head)
        opening = render(plan.opening)
        prompt = [*opening, *plan.known_ids().tolist(), *(render(plan.suffix) if plan.previous else [])]
        record = TurnRecord(prompt, [int(reply[1:]), 5], [-1, -1])
        trajectory.commit(plan, record, message(reply), opening_tokens=len(opening) if plan.previous else 0)
        asked = f"{asked} {reply} u21"
    assert trajectory.match(messages("s10 u20 a30 u22"), head=Head.of(write, "n")).reason == "fork:tools"
    assert trajectory.match(messages("s10 u20 a30 u22"), head=Head.of(read, "o")).reason == "fork:model"
    options = Head.of(read, "n", {"enable_thinking": False})
    assert trajectory.match(messages("s10 u20 a30 u22"), head=options).reason == "fork:options"


def test_ids_of_another_vocabulary_are_not_gone_on_from() -> None:
    """Under ``keep`` nothing is carried over; under ``template`` the conversation has a tree for each."""
    for policy in HistoryPolicy:
        trajectory = Trajectory(policy=policy)
        asked = messages("s10 u20")
        small, large = Head.of(model="s", vocabulary="small"), Head.of(model="l", vocabulary="large")
        trajectory.commit(trajectory.match(asked, head=small), TurnRecord(ids("P"), [30, 5], [-1, -1]), message("a30"))
        asked += messages("a30 u21")
        plan = trajectory.match(asked, head=large)
        assert (plan.matched, plan.known_tokens, plan.splice, plan.merge) == (0, 0, None, None)
        trajectory.commit(plan, TurnRecord(ids("P 7"), [31, 5], [-1, -1]), message("a31"))
        assert trajectory.match(asked, head=small).matched == 3
        assert trajectory.match([*asked, *messages("a31 u22")], head=large).matched == 5


def test_a_reply_of_nothing_at_all_is_not_gone_on_from() -> None:
    player = Player()
    empty = TurnRecord(ids("P"), [], None, "length")
    player.trajectory.commit(player.ask("s10 u20"), empty, message("a") | {"content": ""})
    plan = player.ask("s10 u20 u21")
    assert (plan.reason, plan.previous) == ("new", None)


def test_equal_messages_that_render_in_another_way_share_no_prompt() -> None:
    trajectory = Trajectory(policy=HistoryPolicy.KEEP)
    for prompt in ("P", "1 10 5 2 99 5 3", "1 99 10 5 2 20 5 3"):
        plan = trajectory.match(messages("s10 u20"))
        trajectory.commit(plan, TurnRecord(ids(prompt), [31, 5], [-31 / 64, -5 / 64]), message("a31"))
    check_samples(
        export(trajectory).samples,
        ["P | [31] [5]", "1 10 5 2 99 5 3 | [31] [5]", "1 99 10 5 2 20 5 3 | [31] [5]"],
    )


def test_siblings_share_their_prompt() -> None:
    player = played("s10 u20 -> c30; s10 u20 c30 t40 -> a31; s10 u20 c30 t40 -> a32")
    (first, second), (_, third) = (
        [node.generation for node in chain if node.generation] for chain in player.trajectory.chains()
    )
    assert second.given is third.given
    assert (second.base, third.base) == (first, first)


def test_a_plan_has_a_siblings_prompt_ready() -> None:
    player = played(TWO_TURNS)
    plan = player.ask("s10 u20 c30 t40")
    assert plan.sibling is not None
    assert plan.sibling.prompt_ids().tolist() == player.prompts[1]
    assert player.ask("s10 u20 c30 t41").sibling is None


def test_under_keep_each_prompt_is_the_one_before_and_more() -> None:
    player = played("s10 u20 -> c30; s10 u20 c30 t40 -> a31; s10 u20 c30 t40 a31 u21 -> a32")
    generations = [node.generation for node in next(player.trajectory.chains()) if node.generation]
    for before, after in pairwise(generations):
        assert after.base is before
        assert after.base_len == before.length
    assert [each.given.tolist() for each in generations] == [ids("P"), ids("4 40 5 3"), ids("2 21 5 3")]


def test_ids_that_are_not_what_the_plan_asked_for_are_refused() -> None:
    player = played("s10 u20 -> c30")
    plan = player.ask("s10 u20 c30 t40")
    wrong = TurnRecord(ids("P 30 99 4 40 5 3"), [31, 5], [-0.5, -0.5])
    with pytest.raises(PromptMismatch, match=r"token 8: known \[5\], sent \[99, 4, 40, 5, 3\]") as refused:
        player.trajectory.commit(plan, wrong, message("a31"))
    assert refused.value.position == len(ids("P 30"))
    assert isinstance(refused.value, TurnRejected)
    short = TurnRecord(ids("P 30"), [31, 5], [-0.5, -0.5])
    with pytest.raises(PromptMismatch, match=r"known \[5\], sent \[\]"):
        player.trajectory.commit(plan, short, message("a31"))
    assert (player.trajectory.turn_count, len(player.trajectory.paths()[0])) == (1, 3)


def test_a_splice_behind_another_opening_is_refused() -> None:
    player = played("T1 | s10 u20 -> c30")
    plan = player.ask("s10 u20 c30 t40", head="2")
    asked = TurnRecord(ids("92 P 30 5 4 40 5 3"), [31, 5], [-0.5, -0.5])
    with pytest.raises(TurnRejected, match="opening_tokens"):
        player.trajectory.commit(plan, asked, message("a31"))
    with pytest.raises(PromptMismatch):
        player.trajectory.commit(plan, asked, message("a31"), opening_tokens=len(ids("P")))
    assert len(player.trajectory.heads) == 1, "a refused turn leaves no root"
    player.trajectory.commit(plan, asked, message("a31"), opening_tokens=len(ids("92 P")))
    assert len(player.trajectory.heads) == 2


def test_a_plan_stands_whatever_was_committed_since() -> None:
    """Two requests are matched and sent before either is committed."""
    player = played("T1 | s10 u20 -> c30")
    texts = ["s10 u20 c30 t40", "s10 u20 c30 t40", "s10 u20 c35 t41"]
    for head in ("1", "2"):
        plans = [player.ask(text, head) for text in texts]
        for plan, text in zip(plans, texts, strict=True):
            player.answer(text, plan, "a31", head=head)
    made = export(player.trajectory)
    check_samples(
        made.samples,
        [
            "91 P | [30] [5] 4 40 5 3 [31] [5]",
            "91 P | 30 5 4 40 5 3 [31] [5]",
            "91 P 35 5 4 41 5 3 | [31] [5]",
            "92 P 30 5 4 40 5 3 | [31] [5]",
            "92 P 30 5 4 40 5 3 | [31] [5]",
            "92 P 35 5 4 41 5 3 | [31] [5]",
        ],
    )


def test_a_template_that_cannot_be_trusted_forks_and_loses_nothing() -> None:
    """Whole renders, one of which departs from the ids that were sampled."""
    player = played("s10 u20 -> c30:think")
    for words, prompt, reply in (
        ("s10 u20 c30 t40", "P 30 99 4 40 5 3", "a31"),
        ("s10 u20 c30 t40 a31 u21", "P 30 99 4 40 5 3 31 5 2 21 5 3", "a32"),
    ):
        plan = player.ask(words).full_render()
        assert (plan.previous, plan.suffix, len(plan.opening)) == (None, (), len(words.split()))
        number = int(reply[1:])
        player.trajectory.commit(plan, TurnRecord(ids(prompt), [number, 5], [-number / 64, -5 / 64]), message(reply))
    assert player.reasons == "new fork:unverified-template fork:unverified-template"
    made = export(player.trajectory)
    check_samples(made.samples, ["P | [30] [5]", "P 30 99 4 40 5 3 | [31] [5] 2 21 5 3 [32] [5]"])
    second, third = player.trajectory.explain()[1:]
    assert second.divergence is not None
    assert (second.divergence.position, second.divergence.known, second.divergence.sent[:1]) == (8, (5,), (99,))
    assert third.divergence is None


def test_what_is_not_in_one_piece_is_spliced_from_its_last_break_on() -> None:
    player = played("T1 | s10 u20 -> a30")
    plan = player.ask("s10 u20 a30 u21", "1").full_render()
    drifted = TurnRecord(ids("91 P 99 5 2 21 5 3"), [31, 5], [-31 / 64, -5 / 64])
    player.trajectory.commit(plan, drifted, message("a31"), number=2)
    player.play("T2 | s10 u20 a30 u21 a31#2 u22 -> a32")
    assert len(player.plans[-1].opening) == 4
    check_samples(
        export(player.trajectory).samples,
        ["91 P | [30] [5]", "91 P 99 5 2 21 5 3 | [31] [5]", "92 P 30 5 2 21 5 3 31 5 2 22 5 3 | [32] [5]"],
    )


def test_matching_changes_nothing() -> None:
    player = played("T1 | s10 u20 -> c30; T1 | s10 u20 c30 t40 -x a31.32")
    before = (player.trajectory.paths(), player.trajectory.heads, player.trajectory.turn_count)
    for text in ("s10 u20 c30 t40 a31 u21", "s10 u20 c35 u21", "s12 u20", "s10 u20 c30 t41"):
        for head in ("1", "2"):
            player.ask(text, head)
    assert (player.trajectory.paths(), player.trajectory.heads, player.trajectory.turn_count) == before
    assert player.trajectory.interrupted_tokens == 2


def test_messages_that_a_plan_covers_are_those_of_the_request() -> None:
    player = played(TWO_TURNS)
    plan = player.ask("s10 u20 c30 t40 a31 u21")
    assert [each["content"] for each in plan.suffix] == ["u21"]
    assert (plan.opening, plan.known_ids().tolist()) == ((), ids("P 30 5 4 40 5 3 31 5"))
    spliced = player.ask("s10 u20 c30 t40 a31 u21", "2")
    assert [each["content"] for each in (*spliced.opening, *spliced.suffix)] == ["s10", "u20", "u21"]
    assert spliced.known_ids().tolist() == ids("30 5 4 40 5 3 31 5")


def test_the_python_api_takes_turns_under_keep_too() -> None:
    manager = TrajectoryManager(policy=HistoryPolicy.KEEP)
    for prompt, conversation, reply in (("P", "s10 u20", "a30"), ("P 30 5 4 40 5 3", "s10 u20 a30 t40", "a31")):
        number = int(reply[1:])
        manager.record_turn(
            "x",
            turn=TurnRecord(ids(prompt), [number, 5], [-number / 64, -5 / 64]),
            prompt_messages=messages(conversation),
            response_message=message(reply),
        )
    with pytest.raises(PromptMismatch):
        manager.record_turn(
            "x",
            turn=TurnRecord(ids("P 30 99"), [32, 5], [-1, -1]),
            prompt_messages=messages("s10 u20 a30 t41"),
            response_message=message("a32"),
        )
    check_samples(manager.get_trajectory("x", base_sample=Sample()), [ONE_ROW])


def test_more_equal_siblings_than_the_beam_holds() -> None:
    player = Player()
    for _ in range(40):
        player.play("s10 u20 -> a30")
    player.play("s10 u20 a30#3 u21 -> a31; s10 u20 a30 u22 -> a32; s10 u20 a30#3 u21 a31 u22 -> a33")
    assert player.reasons.split()[40:] == ["exact", "exact:ambiguous", "exact"]
    chains = [[node.turn_index for node in chain if node.turn_index] for chain in player.trajectory.chains()]
    assert [chain for chain in chains if len(chain) > 1] == [[3, 41, 43], [40, 42]]


def test_a_long_run_of_tool_results_is_no_burden() -> None:
    results = " ".join(f"t{40 + number % 50}" for number in range(2000))
    player = played(f"s10 u20 -> c30; s10 u20 c30 {results} -> a31; s10 u20 c30 {results} a31 u21 -> a32")
    backwards = " ".join(reversed(results.split()))
    assert player.reasons == "new exact exact"
    assert player.ask(f"s10 u20 c30 {backwards} a31 u21").reason == "fork:edit"
