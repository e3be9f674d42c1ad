"""What one session holds: a root per head, and the counts that an export is balanced against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from adapter.trajectory.generation import Generation, shared_prefix
from adapter.trajectory.heads import Head
from adapter.trajectory.ledger import DropReason
from adapter.trajectory.node import ROOT_ROLE, Node, NodeNumbers
from adapter.trajectory.plan import Interrupted
from engine.types import Ids

MAX_STEMS = 8
"""Prompts under one head that others are compared with; sub-agents of more kinds than that share less."""

SHORTEST_STEM = 64
"""Tokens. Sharing fewer would cost more than it saves."""


@dataclass(slots=True, eq=False)
class Root:
    """Where all conversations under one head begin."""

    head: Head
    node: Node = field(default_factory=lambda: Node(ROOT_ROLE, None))
    _stems: list[Generation] = field(default_factory=list)

    def stem(self, prompt: Ids) -> tuple[Generation | None, int]:
        """The turn that shares most of a new conversation's prompt, with how many tokens that is."""
        best, shared = None, 0
        for turn in self._stems:
            length = shared_prefix(turn.prompt_ids(), prompt)
            if length > shared:
                best, shared = turn, length
        return (best, shared) if shared >= SHORTEST_STEM else (None, 0)

    def opened_by(self, turn: Generation) -> None:
        """``turn`` began a conversation here; it becomes a stem if it is unlike those there are."""
        if len(self._stems) < MAX_STEMS and turn.base_len * 2 <= turn.prompt_len:
            self._stems.append(turn)

    def chains(self) -> Iterator[tuple[Node, ...]]:
        """For each leaf the nodes above it and itself; depth first, siblings as they came."""
        path: list[Node] = []
        pending = [(child, 0) for child in reversed(self.node.children)]
        while pending:
            node, depth = pending.pop()
            del path[depth:]
            path.append(node)
            if not node.children:
                yield tuple(path)
            pending.extend((child, depth + 1) for child in reversed(node.children))


@dataclass(slots=True, eq=False)
class Forest:
    """The roots in order of arrival."""

    roots: list[Root] = field(default_factory=list)
    turns: int = 0
    """Committed so far."""
    dropped: Counter[DropReason] = field(default_factory=Counter)
    """Sampled tokens that are in no turn of the forest."""

    interrupted: list[Interrupted] = field(default_factory=list)
    """Replies that were cut off and not taken up again, in order of arrival."""

    numbers: NodeNumbers = field(default_factory=NodeNumbers)

    def find(self, head: Head) -> Root | None:
        return next((root for root in self.roots if root.head == head), None)

    def root(self, head: Head) -> Root:
        """The root of ``head``, new if there is none."""
        found = self.find(head)
        if found is None:
            found = Root(head)
            self.numbers.enter(found.node, None)
            self.roots.append(found)
        return found
