"""The ledger of an export: every sampled token is either trained once or dropped for a reason.

    sampled == trained + sum(dropped)

``sampled`` is counted when turns are committed, ``trained`` over the loss masks that are handed out, ``dropped``
where tokens stop training; so a token that is lost or doubled on the way shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adapter.trajectory.errors import LedgerMismatch


class DropReason(StrEnum):
    """Why a sampled token is not trained. Turns that were recorded as ``untrainable`` bring their own reason code."""

    REALIGNED = "realigned"
    """The next turn's prompt held another version of this output, close enough to go on in the same sample."""
    REWRITTEN = "rewritten"
    """The client replayed another message in place of this output (rewrite-merge)."""
    NON_FINITE = "non_finite_log_prob"
    """The engine gave NaN or infinity for it."""
    CUT = "cut"
    """It lies beyond ``max_sample_tokens``."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Counts of sampled tokens. ``dropped`` maps reasons to counts and holds no zeros."""

    sampled: int
    trained: int
    dropped: Mapping[str, int]

    def check(self) -> None:
        """Raises: LedgerMismatch."""
        if self.sampled != self.trained + sum(self.dropped.values()):
            raise LedgerMismatch(f"sampled {self.sampled} != trained {self.trained} + dropped {dict(self.dropped)}")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"sampled": self.sampled, "trained": self.trained, "dropped": dict(self.dropped)}
