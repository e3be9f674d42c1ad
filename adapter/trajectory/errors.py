"""What can be wrong with a trajectory. Both are faults of the caller or of this package, never of a client.

TurnRejected      a turn record contradicts itself; nothing was recorded
LedgerMismatch    an export lost or doubled a sampled token; nothing was exported
"""

from __future__ import annotations


class TurnRejected(AssertionError):
    """A turn record contradicts itself. The text names the field.

    An AssertionError, because callers of slime's trajectory manager expect that type.
    """


class LedgerMismatch(RuntimeError):
    """The ledger does not balance: sampled != trained + dropped."""
