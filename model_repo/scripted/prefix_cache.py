"""A model of an engine's prefix cache: per session, the ids of its last request (prompt and output), reused in whole
blocks."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


class PrefixCache:
    """``capacity`` in tokens over all sessions; the least recently used session is dropped first."""

    def __init__(self, block_size: int, capacity: int) -> None:
        self._block_size = block_size
        self._capacity = capacity
        self._sessions: OrderedDict[str, Ids] = OrderedDict()
        self.tokens = 0

    def cached_tokens(self, session: str, prompt: Ids) -> int:
        """How much of the prompt is there; never all of it, for the last token has to be computed to go on from it."""
        known = self._sessions.get(session)
        if known is None:
            return 0
        self._sessions.move_to_end(session)
        common = min(_common_prefix(known, prompt), len(prompt) - 1)
        return common // self._block_size * self._block_size

    def store(self, session: str, ids: Ids) -> None:
        """Requests without a session share nothing and are not kept."""
        if not session:
            return
        self._drop(session)
        self._sessions[session] = ids
        self.tokens += len(ids)
        while self.tokens > self._capacity:
            self._drop(next(iter(self._sessions)))

    def clear(self) -> None:
        self._sessions.clear()
        self.tokens = 0

    def _drop(self, session: str) -> None:
        ids = self._sessions.pop(session, None)
        if ids is not None:
            self.tokens -= len(ids)


def _common_prefix(one: Ids, other: Ids) -> int:
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if different.size else length
