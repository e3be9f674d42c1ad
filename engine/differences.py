"""How far recorded log probs are from true ones, for all tokens and by groups of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.sample_rows import NO_VERSION

QUANTILES = (0.5, 0.9, 0.99)
SHOWN_GROUPS = 8
"""Groups that are shown of each kind, those with the largest differences."""

Differences = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Absolute differences of ``tokens`` log probs, in nats; NaN where there are none."""

    tokens: int
    mean: float
    quantiles: dict[str, float]
    max: float

    @classmethod
    def of(cls, differences: Differences) -> Distribution:
        """A difference that is NaN or infinite makes the mean so, and the largest."""
        known = differences if differences.size else np.array([np.nan])
        quantiles = {f"p{100 * q:g}": float(np.quantile(known, q, method="higher")) for q in QUANTILES}
        return cls(int(differences.size), float(known.mean()), quantiles, float(known.max()))

    def __str__(self) -> str:
        quantiles = ", ".join(f"{name} {value:.1e}" for name, value in self.quantiles.items())
        return f"mean {self.mean:.1e}, {quantiles}, max {self.max:.1e}"


@dataclass(frozen=True, slots=True)
class Measured:
    """Tokens of one sample that were compared: differences float64, weight versions and turn indexes int32, all [N]."""

    differences: Differences
    versions: NDArray[np.int32]
    turns: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The distribution over all tokens, and by weight version and turn index (``unknown`` where none was recorded)."""

    all: Distribution
    by_version: Mapping[str, Distribution]
    by_turn: Mapping[str, Distribution]

    @classmethod
    def of(cls, measured: Sequence[Measured]) -> Breakdown:
        differences = np.concatenate([np.empty(0), *(each.differences for each in measured)])
        versions = np.concatenate([np.empty(0, np.int32), *(each.versions for each in measured)])
        turns = np.concatenate([np.empty(0, np.int32), *(each.turns for each in measured)])
        return cls(
            Distribution.of(differences),
            _grouped(differences, versions, NO_VERSION),
            _grouped(differences, turns, 0),
        )

    def lines(self) -> list[str]:
        """As text: all tokens, then each weight version, then the turns that differ most."""
        lines = [f"|log prob difference| {self.all}"]
        for kind, groups in (("weight version", self.by_version), ("turn", self.by_turn)):
            worst = sorted(groups, key=lambda name: -groups[name].max)[:SHOWN_GROUPS]
            lines += [
                f"  {kind} {name}: {groups[name].tokens} tokens, {groups[name]}" for name in groups if name in worst
            ]
            if len(groups) > len(worst):
                lines.append(f"  {len(groups) - len(worst)} more {kind}s differ less")
        return lines


def _grouped(differences: Differences, keys: NDArray[np.int32], none: int) -> dict[str, Distribution]:
    return {
        "unknown" if key == none else str(key): Distribution.of(differences[keys == key])
        for key in sorted(set(keys.tolist()))
    }
