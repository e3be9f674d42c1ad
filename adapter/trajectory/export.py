"""Chains of generated nodes to samples with a balanced ledger. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from adapter.trajectory.filters import ExportFilters, label_of
from adapter.trajectory.leaves import Leaf, exported_leaves, leaf_indexes
from adapter.trajectory.ledger import DropReason, Fates, Ledger
from adapter.trajectory.node import Node
from adapter.trajectory.rewards import RewardSpec
from adapter.trajectory.rows import Row, split_into_rows
from adapter.trajectory.samples import Sample, SampleFields, build_sample


class ExportOptions(TypedDict, total=False):
    """Keywords that every export takes; ``SampleFields`` says what they mean."""

    reward: Any
    extra_metadata: dict[str, Any] | None
    max_sample_tokens: int | None
    decode: Callable[[str, list[int]], str] | None
    filters: ExportFilters


@dataclass(frozen=True, slots=True)
class Export:
    """What a session yields. Samples stand in the order of leaves, those of one leaf in the order of turns."""

    samples: list[Sample]
    ledger: Ledger


def export_chains(
    chains: Iterable[Sequence[Node]],
    common: SampleFields,
    *,
    fork_threshold_tokens: int,
    sampled_tokens: int,
    dropped_tokens: Mapping[DropReason, int],
) -> Export:
    """Samples of all chains, a chain being the nodes of one leaf; ``dropped_tokens`` are in none of them.

    Raises: LedgerMismatch; BadRequest, if a reward is for a leaf or a turn that is not there, or a filter lacks a value.
    """
    common.filters.check()
    chains = list(chains)
    fates = _open_fates(chains, common.filters)
    RewardSpec.of(common.reward).check(leaf_indexes(chains))
    claimed: set[int] = set()
    samples: list[Sample] = []
    for leaf in exported_leaves(chains, common.filters):
        for row in split_into_rows(leaf.turns, fork_threshold_tokens, claimed, fates):
            refusal = _refusal(row, leaf, common.filters)
            if refusal is not None:
                _give_up(row, refusal, claimed, fates)
                continue
            sample = build_sample(row, common, leaf, fates)
            if sample is not None:
                samples.append(sample)
    return Export(samples, _ledger(samples, fates, sampled_tokens, dropped_tokens))


def _open_fates(chains: Iterable[Sequence[Node]], filters: ExportFilters) -> Fates:
    """Every turn in the tree must get a fate; turns that are left out by label have theirs at once."""
    fates = Fates()
    for chain in chains:
        for node in chain:
            if node.generation is None:
                continue
            fates.meet(node.generation)
            if filters.drops_label_of(node.generation):
                fates.drop(node.generation, f"{DropReason.LABEL}:{label_of(node.generation)}")
    return fates


def _refusal(row: Row, leaf: Leaf, filters: ExportFilters) -> DropReason | None:
    """Why the row must not become a sample at all."""
    if filters.drop_truncated and leaf.truncated:
        return DropReason.TRUNCATED
    return DropReason.STALE if filters.refuses_stale(row.trained_turns()) else None


def _give_up(row: Row, reason: DropReason, claimed: set[int], fates: Fates) -> None:
    """Nothing of the row trains here; its turns may train in a later leaf."""
    for turn in row.trained_turns():
        fates.drop(turn, reason)
        claimed.discard(turn.turn_index)


def _ledger(
    samples: Iterable[Sample], fates: Fates, sampled_tokens: int, dropped_tokens: Mapping[DropReason, int]
) -> Ledger:
    dropped = fates.dropped()
    dropped.update(dropped_tokens)
    trained = sum(sum(sample.loss_mask) for sample in samples)
    ledger = Ledger(sampled_tokens, trained, {str(reason): count for reason, count in sorted(dropped.items()) if count})
    ledger.check()
    return ledger
