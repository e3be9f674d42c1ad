"""A trajectory out of its saved turns (``saved``): they are carried out again, in the order in which they came.

Nothing is matched or rendered: a plan is read back with its nodes in place, and what is recorded goes through the same code as when
it was new. So the same nodes have the same numbers again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adapter.trajectory.forest import Forest
from adapter.trajectory.generation import Generation
from adapter.trajectory.heads import Head
from adapter.trajectory.node import ROOT_ROLE, Node
from adapter.trajectory.plan import Adoption, Interrupted, Plan, Splice
from adapter.trajectory.reasons import Difference, Finding, Reason
from adapter.trajectory.recording import record, set_aside
from adapter.trajectory.saved import SavedTurn
from adapter.types import (
    HistoryPolicy,
    Label,
    LabelKind,
    Message,
    Normalised,
    Sampling,
    ScaffoldKind,
    ScaffoldSpan,
    TurnRecord,
    TurnSegment,
    VersionSpan,
)
from engine.types import Guide, GuideKind, Ids, LogProbMode, SamplingParams


class Rebuilding:
    """Fills ``forest``, which is empty. Raises: KeyError, LookupError, ValueError for a turn that cannot have been saved here."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._nodes: dict[int, Node] = {}
        self._above: dict[int, Node | None] = {}
        self._turns: dict[int, Generation] = {}
        self._cut: dict[int | None, Interrupted] = {}
        for root in forest.roots:
            self._enter(root.node, None)
        forest.numbers.entered = self._enter

    def close(self) -> None:
        """No more turns come."""
        self._forest.numbers.entered = None

    def commit(self, saved: SavedTurn) -> int:
        """Carry out a committed turn; gives its output tokens."""
        header = saved.header
        plan, turn = self._read(saved)
        node, _ = record(
            self._forest,
            plan,
            turn,
            header["message"],
            number=header["number"],
            opening_tokens=header["opening_tokens"],
            metadata=header["metadata"],
        )
        assert node.generation is not None
        return int(node.generation.output.size)

    def set_aside(self, saved: SavedTurn) -> int:
        """Carry out an interrupted one; gives its output tokens."""
        header = saved.header
        plan, turn = self._read(saved)
        set_aside(self._forest, plan, turn, header["message"], header["number"], header["opening_tokens"])
        self._cut[header["number"]] = self._forest.interrupted[-1]
        return int(turn.output_ids.size)

    def _enter(self, node: Node, above: Node | None) -> None:
        self._nodes[node.number] = node
        self._above[node.number] = above
        if node.generation is not None:
            self._turns[node.generation.turn_index] = node.generation

    def _read(self, saved: SavedTurn) -> tuple[Plan, TurnRecord]:
        plan = self._read_plan(saved.header["plan"])
        return plan, _read_record(saved, self._prompt(plan, saved))

    def _prompt(self, plan: Plan, saved: SavedTurn) -> Ids:
        header, given = saved.header, saved.arrays["given"]
        if plan.whole:
            known = self._turns[header["base"]].ids()[: header["base_len"]] if header["base_len"] else given[:0]
            return np.concatenate([known, given])
        opening = header["opening_tokens"]
        return np.concatenate([given[:opening], plan.known_ids(), given[opening:]])

    def _read_plan(self, saved: Mapping[str, Any]) -> Plan:
        head = Head.from_dict(saved["head"])
        path = self._path(saved["mount"], head)
        passed = tuple(self._nodes[number] for number in saved["passed"])
        splice = self._read_splice(saved["splice"])
        adoption = self._read_adoption(saved["adoption"])
        known = _messages(path[1:], passed)
        if splice is not None:
            known = (*known, *saved["before"], *_messages(splice.nodes, passed))
        elif adoption is not None:
            known = (*adoption.entry.plan.history, adoption.message)
        else:
            known = (*known, *saved["before"])
        return Plan(
            messages=(*known, *saved["behind"]),
            path=path,
            merge=None if saved["merge"] is None else self._nodes[saved["merge"]],
            revision=self._forest.turns,
            matched=saved["matched"],
            policy=HistoryPolicy(saved["policy"]),
            head=head,
            reason=Reason(saved["reason"]),
            passed=passed,
            recognised=tuple((self._nodes[number], _read_finding(found)) for number, found in saved["recognised"]),
            continues=saved["continues"],
            whole=saved["whole"],
            based=saved["based"],
            splice=splice,
            adoption=adoption,
            rival=None if saved["rival"] is None else self._nodes[saved["rival"]].turn,
        )

    def _path(self, mount: int | None, head: Head) -> tuple[Node, ...]:
        if mount is None:
            root = self._forest.find(head)
            return (Node(ROOT_ROLE, None) if root is None else root.node,)
        path = [self._nodes[mount]]
        while (above := self._above[path[-1].number]) is not None:
            path.append(above)
        return tuple(reversed(path))

    def _read_splice(self, saved: Mapping[str, Any] | None) -> Splice | None:
        if saved is None:
            return None
        nodes = tuple(self._nodes[number] for number in saved["nodes"])
        return Splice(nodes, saved["opened"], saved["covered"], saved["start"])

    def _read_adoption(self, saved: Mapping[str, Any] | None) -> Adoption | None:
        if saved is None:
            return None
        return Adoption(self._cut[saved["number"]], saved["index"], saved["message"], saved["tokens"])


def _messages(nodes: tuple[Node, ...], passed: tuple[Node, ...]) -> tuple[Message, ...]:
    skipped = {node.number for node in passed}
    return tuple(node.message or {} for node in nodes if node.number not in skipped)


def _read_finding(saved: Mapping[str, Any]) -> Finding:
    differences = tuple(Difference(name) for name in saved["differences"])
    return Finding(saved["index"], saved["by_handle"], differences, saved["turn_index"])


def _read_record(saved: SavedTurn, prompt: Ids) -> TurnRecord:
    turn = saved.header["turn"]
    return TurnRecord(
        prompt_ids=prompt,
        output_ids=saved.arrays["output"],
        output_log_probs=saved.arrays.get("log_probs"),
        finish_reason=turn["finish_reason"],
        ill_formed=turn["ill_formed"],
        untrainable=turn["untrainable"],
        versions=tuple(VersionSpan(*span) for span in turn["versions"]),
        segments=tuple(TurnSegment(*segment) for segment in turn.get("segments", ())),
        sampling=_read_sampling(turn["sampling"]),
        cached_tokens=turn["cached_tokens"],
        started_at=turn["started_at"],
        finished_at=turn["finished_at"],
        replied=turn["replied"],
        scaffold=tuple(ScaffoldSpan(start, end, ScaffoldKind(kind)) for start, end, kind in turn["scaffold"]),
        normalised=tuple(Normalised(*each) for each in turn["normalised"]),
        label=_read_label(turn["label"]),
    )


def _read_sampling(saved: Mapping[str, Any] | None) -> Sampling | None:
    if saved is None:
        return None
    guide = saved.get("guide") and Guide(GuideKind(saved["guide"]["kind"]), saved["guide"]["text"])
    params, mode = SamplingParams(**saved["params"]), LogProbMode(saved["log_prob_mode"])
    return Sampling(params, saved["max_tokens"], mode, guide, saved.get("model", ""))


def _read_label(saved: Mapping[str, Any] | None) -> Label | None:
    return None if saved is None else Label(**{**saved, "kind": LabelKind(saved["kind"])})
