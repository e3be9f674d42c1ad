"""Which worker owns a session: rendezvous hashing over slots.

Every worker has a slot, a number that stays when its process is replaced. A session's owner is the slot whose hash with the
session's name is highest, so whoever knows how many slots there are knows every owner, and one slot more or less moves only the
sessions that it gains or loses (Thaler and Ravishankar, 1996).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import xxhash


class OwnedElsewhere(Exception):
    """Another worker owns the session; nothing of it is here."""

    def __init__(self, sid: str, slot: int) -> None:
        super().__init__(f"session {sid!r} belongs to worker {slot}")
        self.slot = slot


@dataclass(frozen=True, slots=True)
class Ownership:
    """One worker's view: its own slot, and how many there are."""

    slot: int = 0
    workers: int = 1

    def owner(self, sid: str) -> int:
        if self.workers == 1:
            return 0
        name = sid.encode("utf-8", "surrogatepass")
        return max(range(self.workers), key=lambda slot: xxhash.xxh3_64_intdigest(name, seed=slot))

    def require(self, sid: str) -> None:
        """Raises: OwnedElsewhere."""
        owner = self.owner(sid)
        if owner != self.slot:
            raise OwnedElsewhere(sid, owner)

    def new_name(self) -> str:
        """A name for a session that this worker owns."""
        while True:
            sid = f"s-{secrets.token_hex(12)}"
            if self.owner(sid) == self.slot:
                return sid
