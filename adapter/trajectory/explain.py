"""Why each turn's prompt is what it is: data for people, read off the tree. Ids are left for the caller to decode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from adapter.trajectory.forest import Root
from adapter.trajectory.generation import Generation, shared_prefix
from adapter.trajectory.heads import Head
from adapter.trajectory.node import Node
from adapter.trajectory.reasons import Finding, Reason
from adapter.types import HistoryPolicy, Label, Normalised, TurnSegment

AROUND_TOKENS = 8
"""Ids that are shown on each side of a divergence."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a prompt departs from the ids of turn ``turn_index``, which it could have gone on from."""

    turn_index: int
    position: int
    """Token of the prompt."""
    before: tuple[int, ...]
    """The last ids that both share."""
    known: tuple[int, ...]
    """How the turn's ids go on."""
    sent: tuple[int, ...]
    """How the prompt goes on."""

    @classmethod
    def between(cls, rival: Generation, turn: Generation) -> Divergence | None:
        """None, if the prompt goes on from all of the rival's ids."""
        known, sent = rival.ids(), turn.prompt_ids()
        position = shared_prefix(known, sent)
        if position == known.size:
            return None
        return cls(
            turn_index=rival.turn_index,
            position=position,
            before=tuple(sent[max(0, position - AROUND_TOKENS) : position].tolist()),
            known=tuple(known[position : position + AROUND_TOKENS].tolist()),
            sent=tuple(sent[position : position + AROUND_TOKENS].tolist()),
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "turn_index": self.turn_index,
            "position": self.position,
            "before": list(self.before),
            "known": list(self.known),
            "sent": list(self.sent),
        }


@dataclass(frozen=True, slots=True)
class TurnExplanation:
    """One turn. Counts are tokens: ``reused + rendered`` are the prompt, ``scaffold`` is part of ``rendered``."""

    turn_index: int
    number: int | None
    label: Label | None
    policy: HistoryPolicy
    head: Head
    reason: Reason
    base_turn: int | None
    """The turn that this one goes on from."""
    reused: int
    rendered: int
    scaffold: int
    sampled: int
    finish_reason: str
    segments: tuple[TurnSegment, ...]
    divergence: Divergence | None
    normalised: tuple[Normalised, ...]
    findings: tuple[Finding, ...]
    """Replayed messages that differ from what they were, where no earlier turn says so already."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        label = self.label
        return {
            "turn_index": self.turn_index,
            "number": self.number,
            "label": label and {"kind": str(label.kind), "agent": label.agent, "parent": label.parent},
            "policy": str(self.policy),
            "head": self.head.to_dict(),
            "reason": str(self.reason),
            "base_turn": self.base_turn,
            "tokens": {name: getattr(self, name) for name in ("reused", "rendered", "scaffold", "sampled")},
            "finish_reason": self.finish_reason,
            "segments": [asdict(segment) for segment in self.segments],
            "divergence": self.divergence and self.divergence.to_dict(),
            "normalised": [
                {"rule": each.rule, "field": each.field, "original": each.original} for each in self.normalised
            ],
            "differences": [finding.to_dict() for finding in self.findings],
        }


def explain(roots: Iterable[Root], policy: HistoryPolicy) -> list[TurnExplanation]:
    """Every turn of the tree, in the order of commits."""
    found = [_explained(turn, base, root.head, policy) for root in roots for turn, base in _turns(root.node)]
    return sorted(found, key=lambda each: each.turn_index)


def _turns(root: Node) -> Iterator[tuple[Generation, Generation | None]]:
    """Every turn with the one before it on its path."""
    pending: list[tuple[Node, Generation | None]] = [(root, None)]
    while pending:
        node, base = pending.pop()
        if node.generation is not None:
            yield node.generation, base
        pending.extend((child, node.turn or base) for child in node.children)


def _explained(turn: Generation, base: Generation | None, head: Head, policy: HistoryPolicy) -> TurnExplanation:
    matched = turn.matched
    return TurnExplanation(
        turn_index=turn.turn_index,
        number=turn.number,
        label=turn.label,
        policy=policy,
        head=head,
        reason=matched.reason,
        base_turn=None if base is None else base.turn_index,
        reused=turn.prompt_len - matched.rendered,
        rendered=matched.rendered,
        scaffold=sum(span.end - span.start for span in turn.scaffold),
        sampled=int(turn.output.size),
        finish_reason=turn.finish_reason,
        segments=turn.segments,
        divergence=None if matched.rival is None else Divergence.between(matched.rival, turn),
        normalised=turn.normalised,
        findings=matched.findings,
    )
