"""The two layers: what a generation holds, and how a node finds its children."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from adapter.trajectory import Node, Trajectory, TurnRecord
from adapter.trajectory.node import WIDE, message_hash
from tests.adapter.trajectory.alphabet import ids, message, messages, recorded, turn


def test_a_generation_holds_only_what_is_new() -> None:
    trajectory = recorded(
        "s10 u20 -> a30; s10 u20 a30 t40 -> a31; s10 u20 a30 t40 a31 t41 [P 30 99 4 40 5 3] -> a32; s10 u21 -> a33"
    )
    chains = [[node.generation for node in chain if node.generation] for chain in trajectory.chains()]
    (first, clean, drifted), (other,) = chains
    held = [(each.base, each.base_len, each.given.tolist()) for each in (first, clean, drifted, other)]
    assert held == [
        (None, 0, ids("P")),
        (first, len(ids("P 30 5")), ids("4 40 5 3")),
        (clean, len(ids("P 30")), ids("99 4 40 5 3")),
        (None, 0, ids("1 10 5 2 21 5 3")),
    ]
    assert drifted.prompt_ids().tolist() == ids("P 30 99 4 40 5 3")
    assert drifted.ids().tolist() == ids("P 30 99 4 40 5 3 32 5")
    assert drifted.ids().dtype == np.int32


def test_the_context_of_a_turn_reaches_back_to_the_turn_before_only() -> None:
    trajectory = recorded("s10 u20 -> a30; s10 u20 a30 t40 -> a31; s10 u20 a30 t40 a31 t41 -> a32")
    first, second, third = (node.generation for node in next(trajectory.chains()) if node.generation)
    assert [part.tolist() for part in third.context_after(second) or ()] == [ids("4 41 5 3")]
    assert third.context_after(first) is None
    assert first.context_after(third) is None


def test_what_is_recorded_cannot_be_changed_from_outside() -> None:
    prompt, output = np.array(ids("P"), np.int32), np.array([30, 5], np.int32)
    log_probs = np.array([-0.5, -0.25], np.float32)
    trajectory = Trajectory()
    trajectory.record_turn(
        turn=TurnRecord(prompt, output, log_probs), prompt_messages=messages("s10 u20"), response_message=None
    )
    for array in (prompt, output, log_probs):
        array[:] = 7
    generation = next(trajectory.chains())[-1].generation
    assert generation is not None
    assert generation.ids().tolist() == ids("P 30 5")
    assert generation.log_probs is not None
    assert generation.log_probs.tolist() == [-0.5, -0.25]
    with pytest.raises(ValueError, match="read-only"):
        generation.output[0] = 7


def test_ids_are_held_once() -> None:
    """Turns over one growing prompt hold its ids once, not once a turn."""
    trajectory, conversation, prompt = Trajectory(), messages("s10 u20"), ids("P")
    for _ in range(200):
        trajectory.record_turn(
            turn=TurnRecord(prompt, [30, 5], [-1, -1]), prompt_messages=conversation, response_message=message("a30")
        )
        conversation = [*conversation, message("a30"), message("t40")]
        prompt = [*prompt, *ids("30 5 4 40 5 3")]
    generations = [node.generation for node in next(trajectory.chains()) if node.generation]
    buffers = [array for each in generations for array in (each.given, each.output)]
    assert sum(array.size for array in buffers) == len(prompt) - len(ids("4 40 5 3"))
    assert all(array.base is None for array in buffers), "a view keeps the buffer behind it alive"
    assert generations[-1].ids().tolist() == prompt[: -len(ids("4 40 5 3"))]


def test_a_session_is_freed_when_it_is_let_go_of() -> None:
    """No reference cycle keeps a finished session until the garbage collector runs; long chains do not overflow the stack."""
    trajectory = recorded("s10 u20 -> a30; s10 u20 a30 t40 -> a31; s10 u20 a35 t40 -> a32; s10 u21 -> a33")
    conversation = [message(f"u{number}") for number in range(100_000)]
    trajectory.record_turn(
        turn=turn("s10 -> a30").record(), prompt_messages=conversation, response_message=message("a30")
    )
    watched = [weakref.ref(chain[-1].generation) for chain in trajectory.chains()]
    assert len(watched) == 4
    gc.disable()
    try:
        del trajectory
        assert [ref() for ref in watched] == [None] * 4
    finally:
        gc.enable()


def test_a_wide_node_compares_with_few_children() -> None:
    """Hundreds of replies to one prompt do not make each request compare with all of them."""

    class Counted(dict[str, object]):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return super().__eq__(other)

    node = Node("user", None)
    children = [node.add(Node.of(message(f"a{number}"))) for number in range(500)]
    assert node.find(Counted(message("a499"))) is children[499]
    assert node.find(Counted(message("a500"))) is None
    assert Counted.compared < 10


def test_a_wide_node_looks_at_few_children_for_what_is_alike() -> None:
    node = Node("user", None)
    children = [node.add(Node.of(message(f"a{number}"))) for number in range(2 * WIDE)]
    assert list(node.find_alike({"role": "assistant", "content": " a3\n"})) == [children[3]]
    later = node.add(Node.of({"role": "assistant", "content": "a3 ", "reasoning_content": "thought"}))
    node.add(Node("assistant", None))
    assert list(node.find_alike(message("a3"))) == [children[3], later]
    assert list(node.find_alike(message("u3"))) == []
    node.rewrite(children[5], message("a99"))
    assert list(node.find_alike(message("a99"))) == [children[5]]


def test_a_reply_is_found_by_its_role_too() -> None:
    """A generated node is an assistant's whatever its message says."""
    trajectory = Trajectory()
    first = turn("s10 u20 -> a30")
    trajectory.record_turn(
        turn=first.record(), prompt_messages=first.prompt_messages, response_message={"content": "a30"}
    )
    plan = trajectory.match([*first.prompt_messages, {"content": "a30"}])
    assert plan.unmatched == ({"content": "a30"},)


def test_a_wide_node_finds_children_as_a_narrow_one_does() -> None:
    node = Node("user", None)
    words = [f"a{number % (2 * WIDE)}" for number in range(4 * WIDE)]
    children = [node.add(Node.of(message(word))) for word in words]
    for word in set(words):
        assert node.find(message(word)) is children[words.index(word)], "the first of equal children"
    assert node.find(message("a99")) is None
    assert node.find({"role": "tool", "content": "a1"}) is None
    node.rewrite(children[3], message("a99"))
    assert node.find(message("a99")) is children[3]
    assert node.find(message("a3")) is children[3 + 2 * WIDE]


EQUAL = [
    ({"a": 1, "b": [1, {"c": None}]}, {"b": [1.0, {"c": None}], "a": True}),
    ({"role": "tool", "content": ""}, {"content": "", "role": "tool"}),
    ({"x": 0}, {"x": False}),
]
UNEQUAL = [
    ({"a": "1"}, {"a": 1}),
    ({"a": [1, 2]}, {"a": [2, 1]}),
    ({"a": {}}, {"a": None}),
    ({"a": 1}, {"a": 1, "b": 1}),
]


def test_equal_messages_have_equal_hashes() -> None:
    assert all(left == right and message_hash(left) == message_hash(right) for left, right in EQUAL)
    assert all(left != right and message_hash(left) != message_hash(right) for left, right in UNEQUAL)


def test_nesting_does_not_overflow_the_hash() -> None:
    deep: dict[str, object] = {}
    for _ in range(5000):
        deep = {"a": deep}
    assert isinstance(message_hash(deep), int)
