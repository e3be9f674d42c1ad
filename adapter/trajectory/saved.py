"""Turns as a journal keeps them: what was added to a trajectory, in a form that adds the same again.

A saved turn refers to what the trajectory has already, by number: nodes in the order in which they came (``NodeNumbers``), turns by
their index, interrupted replies by their turn's number. So its size follows what is new: the messages that no node has, and the
prompt's ids that neither the plan nor the turn before knows.

    prompt = ids of turn ``base`` [:base_len] ++ given                      rendered as a whole
    prompt = given[:opening_tokens] ++ plan.known_ids() ++ the rest of given    otherwise
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapter.trajectory.forest import Forest
from adapter.trajectory.generation import Generation, shared_prefix
from adapter.trajectory.plan import Plan
from adapter.trajectory.reasons import Finding
from adapter.types import Message, TurnRecord
from engine.types import Ids


@dataclass(frozen=True, slots=True)
class SavedTurn:
    """``header`` is JSON-ready; ``arrays``: ``given`` and ``output`` int32, ``log_probs`` float32 if there are any."""

    header: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Told:
    """What a commit is told beside the turn."""

    number: int | None
    opening_tokens: int
    metadata: Mapping[str, Any] = field(default_factory=dict)


def save_turn(forest: Forest, plan: Plan, turn: TurnRecord, message: Message | None, told: Told) -> SavedTurn:
    """``plan`` as it is about to be carried out; nothing of it is in the forest yet."""
    base, base_len, given = _new_ids(forest, plan, turn.prompt_ids, told.opening_tokens)
    header = {
        "plan": _save_plan(forest, plan),
        "turn": _save_record(turn),
        "message": message,
        "number": told.number,
        "opening_tokens": told.opening_tokens,
        "base": None if base is None else base.turn_index,
        "base_len": base_len,
        "metadata": dict(told.metadata),
    }
    arrays: dict[str, NDArray[Any]] = {"given": given, "output": turn.output_ids}
    if turn.output_log_probs is not None:
        arrays["log_probs"] = turn.output_log_probs
    return SavedTurn(header, arrays)


def _new_ids(forest: Forest, plan: Plan, prompt: Ids, opening_tokens: int) -> tuple[Generation | None, int, Ids]:
    if not plan.whole:
        behind = opening_tokens + plan.known_tokens
        return None, 0, np.concatenate([prompt[:opening_tokens], prompt[behind:]])
    base, root = plan.base, forest.find(plan.head)
    if base is not None and base.origin is None:
        base_len = shared_prefix(base.ids(), prompt)
    else:
        base, base_len = (None, 0) if root is None else root.stem(prompt)
    return base, base_len, prompt[base_len:]


def _save_plan(forest: Forest, plan: Plan) -> dict[str, Any]:
    splice, adoption = plan.splice, plan.adoption
    # What stands before the splice, or before the part of an interrupted reply, is known from there.
    before: tuple[Message, ...] = plan.messages[plan.matched :]
    behind: tuple[Message, ...] = ()
    if splice is not None:
        before, behind = plan.messages[plan.matched : splice.opened], plan.messages[splice.covered :]
    elif adoption is not None:
        before, behind = (), plan.messages[adoption.index + 1 :]
    return {
        "head": plan.head.to_dict(),
        "policy": str(plan.policy),
        "reason": str(plan.reason),
        "mount": plan.mount.number if len(plan.path) > 1 else None,
        "matched": plan.matched,
        "before": list(before),
        "behind": list(behind),
        "whole": plan.whole,
        "based": plan.based,
        "continues": plan.continues,
        "passed": [node.number for node in plan.passed],
        "recognised": [[node.number, _save_finding(finding)] for node, finding in plan.recognised],
        "merge": None if plan.merge is None else plan.merge.number,
        "rival": None if plan.rival is None else _node_of(forest, plan.rival),
        "splice": splice
        and {
            "nodes": [node.number for node in splice.nodes],
            "opened": splice.opened,
            "covered": splice.covered,
            "start": splice.start,
        },
        "adoption": adoption
        and {
            "number": adoption.entry.turn.number,
            "index": adoption.index,
            "message": adoption.message,
            "tokens": adoption.tokens,
        },
    }


def _node_of(forest: Forest, turn: Generation) -> int | None:
    """The number of the node that holds a turn or a copy. Looks through the forest: a rival is rare."""
    pending = [root.node for root in forest.roots]
    while pending:
        node = pending.pop()
        if node.turn is turn:
            return node.number
        pending += node.children
    return None


def _save_finding(finding: Finding) -> dict[str, Any]:
    return {
        "index": finding.index,
        "by_handle": finding.by_handle,
        "differences": [str(difference) for difference in finding.differences],
        "turn_index": finding.turn_index,
    }


def _save_record(turn: TurnRecord) -> dict[str, Any]:
    """All but the ids and log probs."""
    return {
        "finish_reason": str(turn.finish_reason),
        "ill_formed": turn.ill_formed,
        "untrainable": turn.untrainable,
        "versions": [[span.start, span.end, span.version] for span in turn.versions],
        "segments": [dataclasses.astuple(segment) for segment in turn.segments],
        "sampling": None if turn.sampling is None else _plain(turn.sampling),
        "cached_tokens": turn.cached_tokens,
        "started_at": turn.started_at,
        "finished_at": turn.finished_at,
        "replied": turn.replied,
        "scaffold": [[span.start, span.end, str(span.kind)] for span in turn.scaffold],
        "normalised": [[each.rule, each.field, each.original] for each in turn.normalised],
        "label": turn.label and _plain(turn.label),
    }


def _plain(record: Any) -> dict[str, Any]:
    """``dataclasses.asdict`` without the copies, which cost ten times as much."""
    values = ((name, getattr(record, name)) for name in record.__dataclass_fields__)
    return {name: _plain(value) if hasattr(value, "__dataclass_fields__") else value for name, value in values}
