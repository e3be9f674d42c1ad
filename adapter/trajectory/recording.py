"""Turns into the forest: the one place where it changes.

record     mount the plan, then hang the turn below
set_aside  keep a reply that was cut off, outside the tree
adopt      record the part of it that a client replayed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from adapter.trajectory.forest import Forest
from adapter.trajectory.generation import INTERRUPTED, Generation, Matched, shared_prefix
from adapter.trajectory.ledger import DropReason
from adapter.trajectory.matching import match_by_template
from adapter.trajectory.mounting import Mounted, hang, mount, place, twin_below
from adapter.trajectory.node import Node
from adapter.trajectory.plan import Adoption, Interrupted, Plan
from adapter.trajectory.reasons import Finding, Reason
from adapter.trajectory.walk import Request
from adapter.types import HistoryPolicy, Message, TurnRecord
from engine.types import Ids


def record(
    forest: Forest,
    plan: Plan,
    turn: TurnRecord,
    message: Message | None,
    *,
    number: int | None = None,
    opening_tokens: int = 0,
    metadata: Mapping[str, Any] | None = None,
) -> tuple[Node, Node]:
    """Add a turn that was checked. Gives its node and the one above."""
    mounted = _mounted(forest, plan, turn, opening_tokens)
    generation = _generation(plan, turn, mounted, forest.turns + 1, number)
    reply = Node("assistant", message, generation, dict(metadata or {}), continues=plan.continues)
    node = hang(mounted.above, mounted.node, reply)
    forest.turns += 1
    return node, mounted.node


def reason_of(plan: Plan, prompt: Ids) -> Reason:
    """The reason code of a turn that has this prompt, as far as the tree is the one that was matched."""
    if plan.policy is HistoryPolicy.KEEP:
        return plan.reason
    base = plan.base
    return _reason(plan, base, 0 if base is None else shared_prefix(base.ids(), prompt))[0]


def set_aside(
    forest: Forest, plan: Plan, turn: TurnRecord, message: Message, number: int | None, opening_tokens: int
) -> None:
    """Keep a reply that was cut off. What the request took up of an earlier one becomes a turn all the same."""
    base = None if plan.splice is not None else plan.base
    if plan.adoption is not None:
        base = adopt(forest, plan.adoption).turn
    spans_from = 0 if plan.whole else opening_tokens + plan.known_tokens
    kept = Generation.record(replace(turn, finish_reason=INTERRUPTED), base, 0, number=number, spans_from=spans_from)
    forest.interrupted.append(Interrupted(_sharing_messages(plan), kept, message, opening_tokens, spans_from))
    forest.dropped[DropReason.INTERRUPTED] += int(kept.output.size)


def adopt(forest: Forest, adoption: Adoption) -> Node:
    """Make the replayed part of an interrupted reply a turn; gives its node."""
    entry = adoption.entry
    message = adoption.message
    if entry.adopted is None or entry.parent is None:
        forest.interrupted.remove(entry)
        forest.dropped[DropReason.INTERRUPTED] -= adoption.tokens
        plan = entry.plan
        if plan.policy is HistoryPolicy.TEMPLATE:  # the tree may be another one by now
            continues = (lambda _: True) if plan.continues else None
            plan = match_by_template(forest, Request(plan.messages), plan.head, 0, continues=continues)
        entry.adopted, entry.parent = record(
            forest,
            plan,
            entry.turn.as_record(adoption.tokens, entry.spans_from),
            message,
            number=entry.turn.number,
            opening_tokens=entry.opening_tokens,
        )
        return entry.adopted
    known = entry.adopted.generation
    assert known is not None
    if known.output.size == adoption.tokens:
        return entry.adopted
    # Another part of it has become the turn; this one is context, for no token may train twice.
    copy = known.copy_onto(known.base, known.base_len, known.given, entry.turn.output[: adoption.tokens])
    return entry.parent.add(Node("assistant", message, copy=copy))


def _sharing_messages(plan: Plan) -> Plan:
    """The plan with the tree's messages in place of equal ones, so that a client's copy of the history is not kept alive."""
    if len(plan.path) - 1 != plan.matched or plan.recognised:
        return plan
    known = (node.message or {} for node in plan.path[1:])
    return replace(plan, messages=(*known, *plan.unmatched))


def _mounted(forest: Forest, plan: Plan, turn: TurnRecord, opening_tokens: int) -> Mounted:
    if plan.adoption is None:
        return mount(forest, plan, turn.prompt_ids[:opening_tokens])
    adopted = adopt(forest, plan.adoption)
    above, node = plan.adoption.entry.parent, adopted
    for message in plan.messages[plan.adoption.index + 1 :]:
        above, node = node, place(node, [message])
    return Mounted(forest.root(plan.head), node, adopted.turn, above)


def _generation(plan: Plan, turn: TurnRecord, mounted: Mounted, turn_index: int, number: int | None) -> Generation:
    base, prompt = mounted.base, turn.prompt_ids
    known = 0 if plan.whole or base is None else base.length
    shared = known or (0 if base is None else shared_prefix(base.ids(), prompt))
    reason, rival = _reason(plan, base, shared)
    opens = base is None and plan.policy is HistoryPolicy.KEEP
    stem, base_len = mounted.root.stem(prompt) if opens else (base, shared)
    generation = Generation.record(
        turn,
        stem,
        turn_index,
        base_len=base_len,
        number=number,
        matched=Matched(reason, _news(plan), int(prompt.size) - _reused(plan, shared), rival),
        spans_from=known,
        twin=twin_below(mounted.node, base, prompt),
    )
    if opens:
        mounted.root.opened_by(generation)
    return generation


def _reused(plan: Plan, shared: int) -> int:
    """Prompt tokens that were not rendered for this turn."""
    return shared if plan.splice is None else plan.known_tokens


def _news(plan: Plan) -> tuple[Finding, ...]:
    """Findings, without those that an earlier turn has already."""
    found: list[Finding] = []
    for node, finding in plan.recognised:
        if node.replayed != finding:
            node.replayed = finding
            found.append(finding)
    return tuple(found)


def _reason(plan: Plan, base: Generation | None, shared: int) -> tuple[Reason, Generation | None]:
    """The turn's reason, and the turn that its prompt departs from."""
    departs = base if base is not None and shared < base.length else None
    if plan.policy is HistoryPolicy.KEEP:
        return plan.reason, plan.rival or departs
    if plan.merge is not None:
        return Reason.FORK_EDIT, departs
    if plan.adoption is not None:
        return Reason.INTERRUPTED, departs
    if departs is not None:
        thought = any((node.message or {}).get("reasoning_content") for node in plan.path if node.turn is not None)
        return Reason.FORK_THINKING if thought else Reason.FORK_TEMPLATE, departs
    return Reason.NEW if base is None else Reason.EXACT, None
