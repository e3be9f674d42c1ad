"""What sessions said and sampled: a forest of messages with exact ids, and the training samples that come of it. Pure.

How a caller takes a turn through it, under either history policy:

    trajectory = Trajectory(policy=HistoryPolicy.KEEP, require_log_probs=True)
    plan = trajectory.match(messages, head=Head.of(tools, model, options), refs=refs, recut=recut)
    prompt = render(plan.opening) ++ plan.known_ids() ++ render_suffix(plan.suffix, after=plan.previous)
    trajectory.commit(plan, TurnRecord(prompt, ...), reply, number=number, opening_tokens=len(render(plan.opening)))

``opening_tokens`` is given only where known ids follow an opening (``plan.splice``), ``plan.full_render()`` is the plan for
a template that cannot be trusted with suffixes, ``plan.sibling`` has the prompt ready made, and
``record_interrupted(plan, turn, message_so_far, number=number)`` takes the place of ``commit`` for a reply that was cut off.

node        messages; generation: what the engine saw and sampled, held once
forest      one root per head; heads: tools, model and template options
plan        where a request belongs: the frozen result of matching
matching    policy template, as slime does it; keep: policy keep
walk        following a request down a tree; likeness: what is the same message, whatever clients do to it
reasons     reason codes
mounting    a plan into the forest; recording: turns into the forest
interrupted replies that were cut off, and what a client replays of them
saved       turns as a journal keeps them; rebuilding: a trajectory out of them
tree        one session: match, commit (the only mutation), paths, export
explain     why each turn's prompt is what it is
rows        chains of turns to rows of tokens: clean, realign, fork, train once
leaves      what is exported of the tree; filters: what must not train; rewards: whose reward is whose
samples     rows to slime samples
ledger      sampled == trained + dropped by reason
export      all of that for one session
manager     many sessions by id
"""

from adapter.trajectory.errors import LedgerMismatch, PromptMismatch, TrajectoryDamaged, TurnRejected
from adapter.trajectory.explain import Divergence, TurnExplanation
from adapter.trajectory.export import Export, ExportOptions
from adapter.trajectory.filters import AUXILIARY_LABELS, ExportFilters, StaleScope, VersionOf
from adapter.trajectory.generation import Generation
from adapter.trajectory.heads import Head
from adapter.trajectory.ledger import DropReason, Ledger
from adapter.trajectory.manager import TrajectoryManager
from adapter.trajectory.node import Author, Node
from adapter.trajectory.plan import OpenEnded, Plan, Recut
from adapter.trajectory.reasons import Difference, Finding, Reason
from adapter.trajectory.recording import reason_of
from adapter.trajectory.rewards import REWARD_FIELDS, RewardSpec
from adapter.trajectory.samples import Sample
from adapter.trajectory.saved import SavedTurn
from adapter.trajectory.tree import PathEntry, Trajectory
from adapter.types import TurnRecord

__all__ = [
    "AUXILIARY_LABELS",
    "REWARD_FIELDS",
    "Author",
    "Difference",
    "Divergence",
    "DropReason",
    "Export",
    "ExportFilters",
    "ExportOptions",
    "Finding",
    "Generation",
    "Head",
    "Ledger",
    "LedgerMismatch",
    "Node",
    "OpenEnded",
    "PathEntry",
    "Plan",
    "PromptMismatch",
    "Reason",
    "Recut",
    "RewardSpec",
    "Sample",
    "SavedTurn",
    "StaleScope",
    "Trajectory",
    "TrajectoryDamaged",
    "TrajectoryManager",
    "TurnExplanation",
    "TurnRecord",
    "TurnRejected",
    "VersionOf",
    "reason_of",
]
