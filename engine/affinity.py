"""Which replica a session goes to: the one that has its KV cache, as long as that one is not overloaded. Pure.

A session's replicas are ranked by *rendezvous hashing* (highest random weight; Thaler and Ravishankar 1998, "Using name-based
mappings to increase hit rates"): a replica that comes or goes moves only the sessions that were, or will be, its own.

A new session takes the first replica in its ranking that has room, by the bound of *consistent hashing with bounded loads*
(Mirrokni, Thorup and Zadimoghaddam 2018): with m generations alive on n replicas none gets more than ``ceil(c (m + 1) / n)``,
the one to be placed counted. A session that has been somewhere has its cache there, and a prefill of its whole history costs more
than some queueing: it stays up to a load that is much larger.

Loads are those that this process made; with several workers each sees its share, and the shares are alike.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

BOUND = 1.25
"""c for a session that is new: the paper's example, a quarter above the mean."""

STAY_BOUND = 3.0
"""c for a session that has its cache there."""

STAY_LEAST = 16
"""Generations that a replica may have in any case before a session leaves its cache there: few are no load."""


def choose(session: str, loads: Mapping[str, int], home: str | None = None) -> str:
    """One of the replicas in ``loads`` (address to live generations, at least one). ``home`` is where the session was last."""
    if home is not None and home in loads and loads[home] < max(STAY_LEAST, capacity(loads, STAY_BOUND)):
        return home
    room = capacity(loads, BOUND)
    order = ranked(session, loads)
    return next((address for address in order if loads[address] < room), order[0])


def capacity(loads: Mapping[str, int], bound: float) -> int:
    """Generations that one replica may have, with the one that is to be placed."""
    return math.ceil(bound * (sum(loads.values()) + 1) / len(loads))


def ranked(session: str, addresses: Mapping[str, int]) -> list[str]:
    """The replicas in the session's order, the same in every process and at every start."""
    return sorted(addresses, key=lambda address: _weight(session, address), reverse=True)


def _weight(session: str, address: str) -> bytes:
    return hashlib.blake2b(address.encode() + b"\0" + session.encode(errors="surrogatepass"), digest_size=8).digest()
