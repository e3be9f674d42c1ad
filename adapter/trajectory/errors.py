"""What can be wrong with a trajectory. Both are faults of the caller or of this package, never of a client.

TurnRejected      a turn record contradicts itself; nothing was recorded
└── PromptMismatch    the ids that were sent do not begin with those that the plan knew
TrajectoryDamaged saved turns do not fit together
LedgerMismatch    an export lost or doubled a sampled token; nothing was exported
"""

from __future__ import annotations

from engine.types import Ids

SHOWN_TOKENS = 8
"""Ids of each side in a message."""


class TurnRejected(AssertionError):
    """A turn record contradicts itself. The text names the field.

    An AssertionError, because callers of slime's trajectory manager expect that type.
    """


class PromptMismatch(TurnRejected):
    """The ids that were sent are not those that the plan asked for, from token ``position`` of the prompt on."""

    def __init__(self, position: int, known: Ids, sent: Ids) -> None:
        super().__init__(
            f"prompt_ids differ from the known ids at token {position}: "
            f"known {known[:SHOWN_TOKENS].tolist()}, sent {sent[:SHOWN_TOKENS].tolist()}"
        )
        self.position = position


class TrajectoryDamaged(ValueError):
    """Saved turns refer to what is not there, or are not complete."""


class LedgerMismatch(RuntimeError):
    """The ledger does not balance: sampled != trained + dropped."""
