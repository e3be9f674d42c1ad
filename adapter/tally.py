"""What has become of sessions since the start, and of the tokens that were exported from them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from adapter.trajectory import Ledger


class SessionEvent(StrEnum):
    """What happens to a session."""

    OPENED = "opened"
    SPILLED = "spilled"
    """Out of memory, into the journal only."""
    LOADED = "loaded"
    """Back from there."""
    FINISHED = "finished"
    DROPPED = "dropped"
    """Forgotten with all it recorded; expired ones included."""
    EXPIRED = "expired"


@dataclass(slots=True)
class SessionTally:
    """Of one process."""

    events: Counter[SessionEvent] = field(default_factory=Counter)
    trained: int = 0
    """Tokens of finished sessions, by their ledgers."""
    dropped: Counter[str] = field(default_factory=Counter)
    """The same, by reason; of reasons with a detail (``label:title``) only what comes before it."""

    def count(self, what: SessionEvent) -> None:
        self.events[what] += 1

    def finished(self, ledger: Ledger) -> None:
        self.count(SessionEvent.FINISHED)
        self.trained += ledger.trained
        for reason, tokens in ledger.dropped.items():
            self.dropped[reason.partition(":")[0]] += tokens
