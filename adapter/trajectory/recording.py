"""From a turn as it happened to a generation of the forest: what is shared with others, and how it was matched."""

from __future__ import annotations

from adapter.trajectory.generation import Generation, Matched, shared_prefix
from adapter.trajectory.mounting import Mounted, twin_below
from adapter.trajectory.plan import Plan
from adapter.trajectory.reasons import Finding, Reason
from adapter.types import HistoryPolicy, TurnRecord


def generation_of(plan: Plan, turn: TurnRecord, mounted: Mounted, turn_index: int, number: int | None) -> Generation:
    """The generation of ``turn``, whose plan was mounted."""
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
    return shared if plan.splice is None else int(plan.known_ids().size)


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
