"""The ledger of an export: every sampled token is either trained once or dropped for a reason.

    sampled == trained + sum(dropped)

``sampled`` is counted when turns are committed, ``trained`` over the loss masks that are handed out, ``dropped``
over the fates of the tokens: while an export is made, each sampled token has one. So a token that is lost or doubled
on the way shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapter.trajectory.errors import LedgerMismatch
from adapter.trajectory.generation import Generation


class DropReason(StrEnum):
    """Why a sampled token is not trained. Turns that were recorded as ``untrainable`` bring their own reason code."""

    REALIGNED = "realigned"
    """The next turn's prompt held another version of this output, close enough to go on in the same sample."""
    REWRITTEN = "rewritten"
    """The client replayed another message in place of this output (rewrite-merge)."""
    INTERRUPTED = "interrupted"
    """The reply was cut off, and no client replayed this part of it."""
    NON_FINITE = "non_finite_log_prob"
    """The engine gave NaN or infinity for it."""
    CUT = "cut"
    """It lies beyond ``max_sample_tokens``."""
    LABEL = "label"
    """A filter left out turns with this label; the reason reads ``label:title``."""
    STALE = "stale"
    """A filter left it out, or the whole sample, since it was sampled by weights that are too old."""
    TRUNCATED = "truncated"
    """A filter left out the sample, since the last turn of its leaf ended at the token limit."""


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


_OPEN, _TRAINED = 0, 1
"""Fates before and beside the reasons, which count from 2."""


class Fates:
    """What becomes of each sampled token while an export is made.

    A token that was given up may still be trained, or be given up again, by a later leaf. Once it is trained nothing
    more may happen to it.
    """

    def __init__(self) -> None:
        self._of_turn: dict[int, NDArray[np.int16]] = {}
        self._reasons: list[str] = []

    def drop(self, turn: Generation, reason: str, where: NDArray[np.bool_] | None = None) -> None:
        """Give up output tokens of ``turn``: all of them, or those where ``where``, bool [N], is true."""
        if reason not in self._reasons:
            self._reasons.append(reason)
        self._settle(turn, where, 2 + self._reasons.index(reason))

    def train(self, turn: Generation, where: NDArray[np.bool_]) -> None:
        """Train the output tokens of ``turn`` where ``where``, bool [N], is true. Raises: LedgerMismatch."""
        self._settle(turn, where, _TRAINED)

    def meet(self, turn: Generation) -> None:
        """``turn`` is part of the export: from now on its tokens must get a fate."""
        self._fates(turn)

    def dropped(self) -> Counter[str]:
        """Tokens by reason. Raises: LedgerMismatch, if a token has no fate."""
        counts: Counter[str] = Counter()
        for turn_index, fates in self._of_turn.items():
            by_fate = np.bincount(fates, minlength=2)
            if by_fate[_OPEN]:
                raise LedgerMismatch(f"{by_fate[_OPEN]} tokens of turn {turn_index} are neither trained nor dropped")
            for code in np.flatnonzero(by_fate[2:]):
                counts[self._reasons[code]] += int(by_fate[2 + code])
        return counts

    def _settle(self, turn: Generation, where: NDArray[np.bool_] | None, fate: int) -> None:
        fates = self._fates(turn)
        chosen = np.ones(fates.size, np.bool_) if where is None else where
        if (fates[chosen] == _TRAINED).any():
            raise LedgerMismatch(f"turn {turn.turn_index} trains, and then something else becomes of it")
        fates[chosen] = fate

    def _fates(self, turn: Generation) -> NDArray[np.int16]:
        found = self._of_turn.get(turn.turn_index)
        if found is None:
            found = self._of_turn[turn.turn_index] = np.full(turn.output.size, _OPEN, np.int16)
        return found
