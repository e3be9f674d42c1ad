"""About how many bytes a recorded turn takes in memory: its ids and log probs, and the messages that came with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from adapter.records import BESIDE_THE_TURN
from adapter.trajectory import SavedTurn

TURN_BYTES = 3_700
"""What a turn takes beside its ids and texts: nodes, records, hashes. tracemalloc says 2.2 to 2.4 KB, for turns of some ten
to some hundred tokens, ids and texts apart; and 1.2 KB for the reply as the client's last request had it (``protocols.known``)."""

VALUE_BYTES = 120
"""What a value of a message takes beside its text: the object and its place."""


def turn_bytes(saved: SavedTurn) -> int:
    plan = saved.header["plan"]
    messages = [saved.header["message"], *plan["before"], *plan["behind"]]
    # A journal's frame may hold more than the turn.
    ids = sum(array.nbytes for name, array in saved.arrays.items() if name not in BESIDE_THE_TURN)
    return TURN_BYTES + ids + _values_bytes(messages)


def _values_bytes(values: Iterable[Any]) -> int:
    size, pending = 0, list(values)
    while pending:
        value = pending.pop()
        size += VALUE_BYTES
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list | tuple):
            pending += value
    return size
