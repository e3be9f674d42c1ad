"""Chains of generated nodes to samples with a balanced ledger. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from adapter.trajectory.ledger import DropReason, Ledger
from adapter.trajectory.node import Generation, Node
from adapter.trajectory.rows import split_into_rows
from adapter.trajectory.samples import Sample, SampleFields, build_sample


class ExportOptions(TypedDict, total=False):
    """Keywords that every export takes; ``SampleFields`` says what they mean."""

    reward: Any
    extra_metadata: dict[str, Any] | None
    max_sample_tokens: int | None
    decode: Callable[[list[int]], str] | None


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
    rewritten_tokens: int,
) -> Export:
    """Samples of all chains, a chain being the nodes of one leaf. Raises: LedgerMismatch."""
    claimed: set[int] = set()
    dropped: Counter[str] = Counter({DropReason.REWRITTEN: rewritten_tokens})
    samples: list[Sample] = []
    for chain in chains:
        generated = [(node, node.generation) for node in chain if node.generation is not None]
        rows = split_into_rows((turn for _, turn in generated), fork_threshold_tokens, claimed, dropped)
        flags = _flags(generated)
        made = (build_sample(row, common, flags, dropped) for row in rows)
        samples.extend(sample for sample in made if sample is not None)
    trained = sum(sum(sample.loss_mask) for sample in samples)
    ledger = Ledger(sampled_tokens, trained, {str(reason): count for reason, count in sorted(dropped.items()) if count})
    ledger.check()
    return Export(samples, ledger)


def _flags(generated: Sequence[tuple[Node, Generation]]) -> dict[str, bool]:
    """What the baseline says of a whole chain, in each of its samples."""
    return {
        "truncated": bool(generated) and generated[-1][1].finish_reason == "length",
        "use_tool": any(bool((node.message or {}).get("tool_calls")) for node, _ in generated),
        "ill_formed": any(turn.ill_formed for _, turn in generated),
    }
