"""The trajectory of one session: a tree of messages, with the ids of every generated turn.

``match`` is pure and says where a request belongs; ``commit`` is the only mutation. A request is matched when it
arrives and committed when its reply is complete, and other turns may have been committed in between: commit sees that
by the plan's revision and matches again, so the tree only depends on the order of commits.

Invariants:

    ids(node) == prompt_ids ++ output_ids as recorded, byte for byte, for every generated node;
    a generation's base is the generated turn before it on its path (so samples need no comparison of ids);
    a rejected turn changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from adapter.trajectory.export import Export, ExportOptions, export_chains
from adapter.trajectory.generation import Generation, check_turn
from adapter.trajectory.matching import Plan, match
from adapter.trajectory.node import ROOT_ROLE, Node
from adapter.trajectory.samples import Sample, SampleFields
from adapter.types import Message, TurnRecord

FORK_THRESHOLD_TOKENS = 1024
"""Tokens. Outputs from this length on are never given up to keep a session in fewer samples. The ancestor's default."""


class PathEntry(TypedDict):
    """One message of a path, for display."""

    role: str
    message: Message | None
    has_generation_record: bool
    turn_index: int | None


class Trajectory:
    """What one session said and sampled.

    ``require_log_probs`` makes a turn without log probs an error; otherwise it trains with 0.0.
    """

    def __init__(
        self, fork_threshold_tokens: int | None = FORK_THRESHOLD_TOKENS, require_log_probs: bool = False
    ) -> None:
        self.root = Node(ROOT_ROLE, None)
        self.turn_count = 0
        """Turns committed, those that were merged away included."""
        self.sampled_tokens = 0
        self.rewritten_tokens = 0
        """Sampled tokens that rewrite-merges took out of the tree."""
        self._fork_threshold = FORK_THRESHOLD_TOKENS if fork_threshold_tokens is None else fork_threshold_tokens
        self._require_log_probs = require_log_probs

    def match(self, messages: Sequence[Message]) -> Plan:
        """Where a request with these messages belongs. Changes nothing."""
        return match(self.root, messages, self._fork_threshold, self.turn_count)

    def commit(
        self,
        plan: Plan,
        turn: TurnRecord,
        response_message: Message | None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Generation:
        """Add the turn that answered ``plan.messages``.

        Messages become part of the tree and must not be changed afterwards; arrays are copied.
        Raises: TurnRejected; ValueError, if the plan has no messages.
        """
        if not plan.messages:
            raise ValueError("a turn answers at least one message")
        check_turn(turn, require_log_probs=self._require_log_probs)
        if plan.revision != self.turn_count:
            plan = self.match(plan.messages)
        generation = Generation.record(turn, plan.base, self.turn_count + 1)
        self._mount(plan).add(Node("assistant", response_message, generation, dict(metadata or {})))
        self.turn_count += 1
        self.sampled_tokens += int(generation.output.size)
        return generation

    def record_turn(
        self,
        *,
        turn: TurnRecord,
        prompt_messages: Sequence[Message],
        response_message: Message | None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Match and commit at once. Without prompt messages nothing happens. Raises: TurnRejected."""
        if prompt_messages:
            self.commit(self.match(prompt_messages), turn, response_message, metadata)

    def export(self, *, base_sample: Sample, **options: Unpack[ExportOptions]) -> Export:
        """Training samples and their ledger. Changes nothing. Raises: LedgerMismatch."""
        return export_chains(
            self.chains(),
            SampleFields(base_sample, **options),
            fork_threshold_tokens=self._fork_threshold,
            sampled_tokens=self.sampled_tokens,
            rewritten_tokens=self.rewritten_tokens,
        )

    def chains(self) -> Iterator[tuple[Node, ...]]:
        """For each leaf the nodes above it and itself, the root left out; depth first, siblings as they came."""
        path: list[Node] = []
        pending = [(child, 0) for child in reversed(self.root.children)]
        while pending:
            node, depth = pending.pop()
            del path[depth:]
            path.append(node)
            if not node.children:
                yield tuple(path)
            pending.extend((child, depth + 1) for child in reversed(node.children))

    def paths(self) -> list[list[PathEntry]]:
        """The tree for display: a list of messages per leaf."""
        return [[_entry(node) for node in chain] for chain in self.chains()]

    def _mount(self, plan: Plan) -> Node:
        """Put the unmatched messages into the tree; gives the node of the last one."""
        node, unmatched = plan.mount, plan.unmatched
        if plan.merge is not None:
            node, unmatched = self._merge(node, plan.merge, unmatched[0]), unmatched[1:]
        for message in unmatched:
            node = node.add(Node.of(message))
        return node

    def _merge(self, parent: Node, target: Node, message: Message) -> Node:
        abandoned = target.generation
        assert abandoned is not None
        target.metadata["merged_rewrite"] = {
            "abandoned_turn_index": abandoned.turn_index,
            "abandoned_response_tokens": int(abandoned.output.size),
        }
        parent.rewrite(target, message)
        self.rewritten_tokens += int(abandoned.output.size)
        return target


def _entry(node: Node) -> PathEntry:
    return {
        "role": node.role,
        "message": node.message,
        "has_generation_record": node.generation is not None,
        "turn_index": node.turn_index,
    }
