"""Following a request's messages down a tree, as ``keep`` does it: by handle, by equality, by likeness.

Several nodes may fit a message, and which of them is meant may show only later. So a beam of candidates goes down
together, and what reached the last reply decides, then how much had to be tolerated, then which turn is the latest.

    handle     an id in the message names a turn, and the message is no edit of it: no other candidate counts then
    exact      the message equals the node's
    tolerant   ``likeness.differences`` says that they are the same

Likeness only serves to recognise replies and what stands before them. Messages behind the last recognised reply will be
rendered, so there a node must be equal, or the model would see another text than the client sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from adapter.trajectory.likeness import LARGEST_GROUP, differences, equal, is_empty, unit_end
from adapter.trajectory.node import WIDE, Node
from adapter.trajectory.reasons import Difference, Finding
from adapter.types import Message

BEAM = 16
"""Candidates. More equal siblings than that are told apart by handles or not at all."""


@dataclass(frozen=True)
class Request:
    """What is matched. ``refs`` holds for each message the turns that it was found to refer to; it may be shorter."""

    messages: Sequence[Message]
    refs: Sequence[Collection[int]] = ()

    def refs_of(self, index: int) -> Collection[int]:
        return self.refs[index] if index < len(self.refs) else ()

    def role(self, index: int) -> str:
        return str(self.messages[index].get("role", ""))

    @cached_property
    def replayed(self) -> int:
        """Messages up to the last of an assistant: all that can be a replay."""
        places = range(len(self.messages) - 1, -1, -1)
        return next((index + 1 for index in places if self.role(index) == "assistant"), 0)


class Step(NamedTuple):
    """A node that a message was found at."""

    node: Node
    before: Step | None
    place: int
    """The message; -1 where the node stands for none."""
    end: int
    """Messages that the path up to here stands for."""
    by_handle: bool = False
    differences: tuple[Difference, ...] = ()
    loose: int = 0
    """Messages of the path that had to be tolerated."""
    newest: int = 0
    """Index of the newest turn on the path."""

    def to(
        self, node: Node, place: int, found: tuple[Difference, ...] = (), *, by_handle: bool = False, end: int = -1
    ) -> Step:
        turn = node.turn
        return Step(
            node,
            self,
            place,
            place + 1 if end < 0 else end,
            by_handle and bool(found),
            found,
            self.loose + (1 if found and not by_handle else 0),
            self.newest if turn is None else max(self.newest, turn.turn_index),
        )

    def path(self) -> list[Step]:
        """From the start to here."""
        steps: list[Step] = []
        step: Step | None = self
        while step is not None:
            steps.append(step)
            step = step.before
        steps.reverse()
        return steps


@dataclass(frozen=True)
class Walk:
    """How far a request leads. ``step`` is the last node found, ``recognised`` the last reply among them, if any."""

    step: Step
    recognised: Step | None
    furthest: tuple[Step, ...]
    """The last nodes that are like what the client has, though no reply may have been recognised behind them."""
    ambiguous: bool
    """Another turn would have done as well as ``recognised``."""

    @property
    def replayed(self) -> int:
        """Messages up to the last recognised reply."""
        return 0 if self.recognised is None else self.recognised.end

    @cached_property
    def steps(self) -> list[Step]:
        return self.step.path()

    def findings(self) -> list[tuple[Node, Finding]]:
        return [
            (step.node, Finding(step.place, step.by_handle, step.differences, _turn_index(step.node)))
            for step in self.steps
            if step.differences
        ]


def walk(start: Node, request: Request, first: int = 0) -> Walk:
    """Follow the messages from ``first`` on down from ``start``."""
    known, reply = _only_ways(Step(start, None, -1, first), request.messages)
    beam, finalists, at = [known], [reply], known.end
    while at < len(request.messages):
        end = unit_end(request.messages, at)
        ends = _follow(beam, request, at, end)
        if not ends and request.role(at) != "assistant":
            passed = _past_empty(beam)
            finalists = passed or finalists
            ends = _follow(passed, request, at, end)
        if not ends:
            break
        beam = _best(ends)
        finalists = [step for step in beam if step.node.turn is not None] or finalists
        at = end
    return _finish(_best(finalists), beam, request)


def _only_ways(step: Step, messages: Sequence[Message]) -> tuple[Step, Step]:
    """As far as each message equals the only one that is known there, and to the end of a unit; and the last reply on the way.

    Most of a history is such; it is what the search below would come to, at a fraction of the cost.
    """
    known = reply = step
    for place in range(step.end, len(messages)):
        node, message = step.node, messages[place]
        if len(node.children) != 1 or not equal(node.children[0].message, message):
            break
        node = node.children[0]
        turn = node.turn
        step = Step(
            node, step, place, place + 1, newest=step.newest if turn is None else max(step.newest, turn.turn_index)
        )
        if place + 1 == len(messages) or message.get("role") != "tool" or messages[place + 1].get("role") != "tool":
            known = step
            reply = reply if turn is None else step
    return known, reply


def _finish(finalists: list[Step], beam: list[Step], request: Request) -> Walk:
    """Take the first candidate and go on from it by equality."""
    best, *others = finalists
    turn = best.node.turn
    rivals = [step for step in others if step.loose == best.loose and step.node.turn is not turn]
    step: Step | None = best
    last = best
    while step is not None:
        last = step
        step = _equal_child(step, request) if step.end < len(request.messages) else None
    furthest = (last,) if last.end > beam[0].end else tuple(beam)
    return Walk(last, None if turn is None else best, furthest, bool(rivals) and turn is not None)


def _equal_child(step: Step, request: Request) -> Step | None:
    """The next message where a client brought it."""
    children = step.node.find_all(request.messages[step.end])
    return next((step.to(child, step.end) for child in children if child.turn is None), None)


def _turn_index(node: Node) -> int | None:
    return None if node.turn is None else node.turn.turn_index


def _best(steps: list[Step]) -> list[Step]:
    """The best first, no more than the beam holds."""
    if len(steps) == 1:
        return steps
    return sorted(steps, key=lambda step: (step.loose, -step.newest))[:BEAM]


def _follow(beam: list[Step], request: Request, start: int, end: int) -> list[Step]:
    """All nodes that the unit ``[start, end)`` leads to."""
    ends = _in_order(beam, request, start, end)
    if ends or not 1 < end - start <= LARGEST_GROUP:
        return ends
    return [found for step in beam for found in _in_any_order(step, request, start, end)]


def _in_order(beam: list[Step], request: Request, start: int, end: int) -> list[Step]:
    for index in range(start, end):
        beam = _best(_children(beam, request, index))
        if not beam:
            break
    return beam


def _children(beam: list[Step], request: Request, index: int) -> list[Step]:
    message = request.messages[index]
    if len(beam) == 1 and len(beam[0].node.children) == 1 and equal(beam[0].node.children[0].message, message):
        return [beam[0].to(beam[0].node.children[0], index)]
    refs = request.refs_of(index)
    if refs:
        named = [found for step in beam for found in _named(step, message, index, refs)]
        if named:
            return named
    return [found for step in beam for found in _alike(step, message, index)]


def _named(step: Step, message: Message, index: int, refs: Collection[int]) -> Iterator[Step]:
    """Replies that the message refers to and is no edit of."""
    for above, child in chain(((step, child) for child in step.node.children), _continuations(step)):
        turn = child.turn
        if turn is None or turn.number not in refs or child.message is None:
            continue
        found = () if equal(child.message, message) else differences(child.message, message, repaired=turn.ill_formed)
        if found is not None:
            yield above.to(child, index, found, by_handle=True)


def _continuations(step: Step) -> Iterator[tuple[Step, Node]]:
    """Replies that go on from a message, each with the step to the node above it: one message of the client stands for both."""
    for *between, reply in step.node.continuations():
        above = step
        for node in between:
            above = above.to(node, -1, end=step.end)
        yield above, reply


def _alike(step: Step, message: Message, index: int) -> Iterator[Step]:
    for above, reply in _continuations(step):
        changes = differences(reply.message or {}, message)
        if changes is not None:
            yield above.to(reply, index, changes)
    same = list(step.node.find_all(message))
    yield from (step.to(child, index) for child in same)
    if same and len(step.node.children) > WIDE:
        return
    for child in step.node.find_alike(message):
        if child.message is not None and child not in same:
            found = differences(child.message, message)
            if found is not None:
                yield step.to(child, index, found)


def _in_any_order(step: Step, request: Request, start: int, end: int) -> Iterator[Step]:
    """Where a group of tool results is in the tree in another order."""
    pending = [(step, tuple(range(start, end)))]
    while pending:
        here, left = pending.pop()
        if not left:
            yield here
            continue
        for child in here.node.children:
            fit = _fit(child, request, left)
            if fit is not None:
                index, found = fit
                step = here.to(child, index, found, end=end)
                pending.append((step, tuple(other for other in left if other != index)))


def _fit(node: Node, request: Request, left: Sequence[int]) -> tuple[int, tuple[Difference, ...]] | None:
    """The first of the messages ``left`` that is like the node's, and how it differs."""
    if node.message is None:
        return None
    for index in left:
        found = differences(node.message, request.messages[index])
        if found is not None:
            return index, found if index == left[0] else (*found, Difference.ORDER)
    return None


def _past_empty(beam: list[Step]) -> list[Step]:
    """Replies in which there was nothing to see: clients leave them out."""
    return [
        step.to(child, -1, (Difference.DROPPED,), end=step.end)
        for step in beam
        for child in step.node.children
        if child.turn is not None and child.turn.output.size and is_empty(child.message or {})
    ]
