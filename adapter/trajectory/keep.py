"""Matching under policy ``keep``: the prompt goes on from known ids, whatever the client did to the history.

    walk down the request's own head                                    exact, handle, tolerant:*
    if replies are left over, look for the conversation under others    fork:model, fork:tools, fork:options, fork:system
    if replies are left over then too, the client changed something     fork:edit

Under another head only what stands before the first reply is rendered anew; behind it the ids go on as they were, as
context (``plan.Splice``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from adapter.trajectory.forest import Forest, Root
from adapter.trajectory.generation import Generation
from adapter.trajectory.heads import Head
from adapter.trajectory.interrupted import find_adoption
from adapter.trajectory.node import ROOT_ROLE, Node
from adapter.trajectory.plan import Adoption, OpenEnded, Plan, Recut, Splice
from adapter.trajectory.reasons import Finding, Reason, most_notable
from adapter.trajectory.walk import Request, Step, Walk, walk
from adapter.types import HistoryPolicy


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """The conversation as it is known under another head or system message."""

    head: Head
    walk: Walk


def match_kept(
    forest: Forest, request: Request, head: Head, recut: Recut | None, continues: OpenEnded | None = None
) -> Plan:
    """Where a request belongs. Pure.

    ``continues``: the last message is the beginning of the reply. If it was sampled and is open-ended, the prompt ends with it as
    it was sampled; otherwise it is the client's own text, behind what is known of the messages before it.
    """
    plan = _match(forest, request, head, recut)
    if continues is None:
        return plan
    plan = replace(plan, continues=True)
    if plan.goes_on is not None and continues(plan.goes_on):
        return plan
    before = _match(forest, Request(request.messages[:-1], request.refs), head, recut)
    return replace(before, messages=tuple(request.messages), continues=True)


def _match(forest: Forest, request: Request, head: Head, recut: Recut | None) -> Plan:
    own = forest.find(head)
    walked = walk(Node(ROOT_ROLE, None) if own is None else own.node, request)
    adoption = find_adoption(forest.interrupted, request, head, walked.replayed, recut)
    reached = walked.replayed if adoption is None else adoption.index + 1
    plan = _plan(request, head, walked, adoption, forest.turns, recut)
    if reached < request.replayed:
        alike = [root for root in forest.roots if root.head.vocabulary == head.vocabulary]
        elsewhere = _find_elsewhere(alike, request, reached)
        splice = None if elsewhere is None else _splice(walked, elsewhere.walk)
        if elsewhere is not None and splice is not None:
            return _forked(plan, walked, elsewhere, splice)
    return plan


def _plan(
    request: Request, head: Head, walked: Walk, adoption: Adoption | None, revision: int, recut: Recut | None
) -> Plan:
    edited = adoption is None and _edit(walked, request)
    findings = tuple(walked.findings())
    return Plan(
        messages=tuple(request.messages),
        path=tuple(step.node for step in walked.steps),
        merge=None,
        revision=revision,
        matched=walked.step.end,
        policy=HistoryPolicy.KEEP,
        head=head,
        passed=_passed(walked.steps),
        reason=Reason.INTERRUPTED if adoption else Reason.FORK_EDIT if edited else _reason(walked, findings),
        recognised=findings,
        whole=walked.recognised is None and adoption is None,
        based=0 if walked.recognised is None else walked.recognised.end,
        adoption=adoption,
        rival=_latest_below(walked.furthest) if edited else None,
        recut=recut,
    )


def _passed(steps: Sequence[Step]) -> tuple[Node, ...]:
    return tuple(step.node for step in steps if step.place < 0 and step.before is not None)


def _reason(walked: Walk, findings: Sequence[tuple[Node, Finding]]) -> Reason:
    if walked.recognised is None:
        return Reason.NEW
    reason = most_notable({finding.reason for _, finding in findings})
    if walked.ambiguous:
        loose = reason not in (Reason.EXACT, Reason.HANDLE)
        return Reason.TOLERANT_AMBIGUOUS if loose else Reason.EXACT_AMBIGUOUS
    return reason


def _edit(walked: Walk, request: Request) -> bool:
    """Whether the replies that are left over stand where others were generated, or are ours in another place."""
    left = range(walked.furthest[0].end, request.replayed)
    if not left:
        return False
    below = [child for step in walked.furthest for child in step.node.children]
    if request.role(left[0]) == "assistant" and any(child.turn is not None for child in below):
        return True
    if walked.recognised is not None and below:
        return True
    return any(request.role(index) == "assistant" and request.refs_of(index) for index in left)


def _latest_below(steps: Sequence[Step]) -> Generation | None:
    """The turn that stands where the client put something else."""
    for step in steps:
        node = step.node
        while node.children:
            node = node.children[-1]
            if node.turn is not None:
                return node.turn
    return None


def _find_elsewhere(roots: Sequence[Root], request: Request, beyond: int) -> _Elsewhere | None:
    """Where most of the replies are known, if that is more than the first ``beyond`` messages; the newest head first."""
    opening = next((index for index in range(len(request.messages)) if request.role(index) != "system"), 0)
    best: _Elsewhere | None = None
    for root in reversed(roots):
        for start in _openings(root.node):
            walked = walk(start, request, opening)
            if walked.replayed > beyond:
                best, beyond = _Elsewhere(root.head, walked), walked.replayed
    return best


def _openings(root: Node) -> Iterator[Node]:
    """Nodes that the first message behind the system messages may stand under."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending += [child for child in node.children if child.role == "system"]


def _splice(own: Walk, elsewhere: Walk) -> Splice | None:
    """What can go on behind the request's own head. None if the ids there are not in one piece from the own base on."""
    assert elsewhere.recognised is not None
    steps = _in_one_piece(elsewhere.recognised)
    if own.recognised is None:
        first = steps[0].node.turn
        assert first is not None
        assert steps[0].before is not None
        return _splice_of(steps, opened=steps[0].before.end, start=first.prompt_len)
    for place, step in enumerate(steps):
        if step.node.turn is not None and step.end == own.recognised.end:
            return _splice_of(steps[place + 1 :], opened=0, start=step.node.turn.length)
    return None


def _splice_of(steps: Sequence[Step], *, opened: int, start: int) -> Splice:
    return Splice(tuple(step.node for step in steps), opened, steps[-1].end, start)


def _in_one_piece(last: Step) -> list[Step]:
    """The steps up to ``last``, a reply, from the first reply on whose ids all later ones extend."""
    steps = last.path()[1:]
    first = len(steps) - 1
    turn = last.node.turn
    for place in range(first - 1, -1, -1):
        before = steps[place].node.turn
        if before is None:
            continue
        if turn is None or turn.base is not before or turn.base_len != before.length:
            break
        first, turn = place, before
    return steps[first:]


def _forked(plan: Plan, own: Walk, elsewhere: _Elsewhere, splice: Splice) -> Plan:
    end = splice.opened if own.recognised is None else own.recognised.end
    steps = [step for step in own.steps if step.end <= end]
    return replace(
        plan,
        path=tuple(step.node for step in steps),
        passed=_passed([*steps, *elsewhere.walk.steps]),
        matched=steps[-1].end,
        reason=plan.head.fork_reason(elsewhere.head),
        recognised=tuple(elsewhere.walk.findings()),
        whole=False,
        splice=splice,
        adoption=None,
        rival=splice.last,
    )
