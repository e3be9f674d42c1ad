"""What sessions said and sampled: a tree of messages with exact ids, and the training samples that come of it. Pure.

node      the two layers: message nodes, and generations that hold the ids
matching  where a request belongs: pure, gives a frozen plan
tree      one session: match, commit (the only mutation), paths, export
rows      chains of turns to rows of tokens: clean, realign, fork, train once
leaves    what is exported of the tree
filters   what must not train
rewards   whose reward is whose
samples   rows to slime samples
ledger    sampled == trained + dropped by reason
export    all of that for one session
manager   many sessions by id
"""

from adapter.trajectory.errors import LedgerMismatch, TurnRejected
from adapter.trajectory.export import Export, ExportOptions
from adapter.trajectory.filters import AUXILIARY_LABELS, ExportFilters, StaleScope
from adapter.trajectory.generation import Generation
from adapter.trajectory.ledger import DropReason, Ledger
from adapter.trajectory.manager import TrajectoryManager
from adapter.trajectory.matching import Plan
from adapter.trajectory.node import Node
from adapter.trajectory.rewards import REWARD_FIELDS, RewardSpec
from adapter.trajectory.samples import Sample
from adapter.trajectory.tree import PathEntry, Trajectory
from adapter.types import TurnRecord

__all__ = [
    "AUXILIARY_LABELS",
    "REWARD_FIELDS",
    "DropReason",
    "Export",
    "ExportFilters",
    "ExportOptions",
    "Generation",
    "Ledger",
    "LedgerMismatch",
    "Node",
    "PathEntry",
    "Plan",
    "RewardSpec",
    "Sample",
    "StaleScope",
    "Trajectory",
    "TrajectoryManager",
    "TurnRecord",
    "TurnRejected",
]
