"""Putting a plan into the forest.

Other turns may have been committed since the plan was made; what they added is used where it is the same. Each function
adds nodes below one and gives the last of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from adapter.trajectory.errors import PromptMismatch, TurnRejected
from adapter.trajectory.forest import Forest, Root
from adapter.trajectory.generation import Generation, owned, shared_prefix
from adapter.trajectory.ledger import DropReason
from adapter.trajectory.node import Node
from adapter.trajectory.plan import Plan, Splice
from adapter.types import Message
from engine.types import Ids


@dataclass(frozen=True, slots=True)
class Mounted:
    """Where a turn goes: below ``node``, the last message of its request; ``base`` is the newest turn above."""

    root: Root
    node: Node
    base: Generation | None
    above: Node | None
    """The node above ``node``, if it has one."""


def check_prompt(plan: Plan, prompt: Ids, opening_tokens: int) -> None:
    """Whether the ids that were sent are those that the plan asks for. Raises: PromptMismatch, TurnRejected."""
    known = plan.known_ids()
    opened = bool(known.size) and bool(plan.opening)
    if opened is not (opening_tokens > 0):
        raise TurnRejected(f"opening_tokens is {opening_tokens}, but the plan has {'an' if opened else 'no'} opening")
    shared = shared_prefix(known, prompt[opening_tokens:])
    if shared < known.size:
        raise PromptMismatch(opening_tokens + shared, known[shared:], prompt[opening_tokens + shared :])


def mount(forest: Forest, plan: Plan, opening: Ids) -> Mounted:
    """Put the messages of a plan without adoption into the forest.

    ``opening`` are the ids of ``plan.opening``, where known ids follow it.
    """
    root = forest.root(plan.head)
    node, above = (plan.mount, plan.path[-2]) if len(plan.path) > 1 else (root.node, None)
    base, rest = plan.base, plan.unmatched
    if plan.merge is not None:
        above, node, rest = node, _merge(forest, node, plan.merge, rest[0]), rest[1:]
    elif plan.splice is not None:
        node = place(node, plan.messages[plan.matched : plan.splice.opened])
        node, rest = _place_splice(root, node, plan.splice, base, opening), plan.messages[plan.splice.covered :]
        base = node.turn
    if rest:
        above = place(node, rest[:-1])
        node = place(above, rest[-1:])
    return Mounted(root, node, base, above)


def twin_below(node: Node, base: Generation | None, prompt: Ids) -> Generation | None:
    """The latest turn below ``node``, if it was asked with the same prompt."""
    twin = next((child.generation for child in reversed(node.children) if child.generation is not None), None)
    if twin is None or twin.prompt_len != prompt.size or (base is not None and twin.base is not base):
        return None
    return twin if np.array_equal(twin.prompt_ids(), prompt) else None


def place(node: Node, messages: Iterable[Message]) -> Node:
    for message in messages:
        node = node.of_client(message)
    return node


def hang(above: Node | None, node: Node, reply: Node) -> Node:
    """Add ``reply`` below ``node``, which has ``above`` above it."""
    if reply.continues and above is not None and node not in above.continued:
        above.continued.append(node)
    return node.add(reply)


def _merge(forest: Forest, parent: Node, target: Node, message: Message) -> Node:
    abandoned = target.generation
    assert abandoned is not None
    target.metadata["merged_rewrite"] = {
        "abandoned_turn_index": abandoned.turn_index,
        "abandoned_response_tokens": int(abandoned.output.size),
    }
    parent.rewrite(target, message)
    forest.dropped[DropReason.REWRITTEN] += int(abandoned.output.size)
    return target


def _place_splice(root: Root, node: Node, splice: Splice, base: Generation | None, opening: Ids) -> Node:
    """Copies of what is spliced in, behind ``base`` or else behind ``opening``."""
    given: Ids | None = None
    base_len = 0 if base is None else base.length
    if base is None:
        base, base_len = root.stem(opening)
        given = owned(opening[base_len:])
    above: Node | None = None
    for source in splice.nodes:
        below = node
        if source.turn is None:
            node = place(node, [source.message or {}])
        else:
            copy = source.turn.copy_onto(base, base_len, source.turn.given if given is None else given)
            reply = Node(source.role, source.message, copy=copy, continues=source.continues)
            node = _copy_below(node, copy) or hang(above, node, reply)
            base, base_len, given = node.copy, copy.length, None
        above = below
    return node


def _copy_below(node: Node, copy: Generation) -> Node | None:
    for child in node.children:
        known = child.copy
        same = known is not None and known.origin is copy.origin and known.base is copy.base
        if known is not None and same and np.array_equal(known.given, copy.given):
            return child
    return None
