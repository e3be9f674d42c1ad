"""A batch for each adapter, and one for the model itself, stepped in turn.

The library's prefix cache knows tokens, not adapters: in one cache the keys and values of one adapter would serve another. So
each has a cache of its own, and a forward pass is of one adapter. Batches that have nothing to do cost nothing but their cache,
which is made when the first request of its adapter comes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from .batch import Batch
from .lora import Adapters


class Batches:
    """Requests by key. Used from one thread."""

    def __init__(self, make_batch: Callable[[], Batch], adapters: Adapters) -> None:
        """Raises: as ``make_batch``, which is called at once for the model itself, and for an adapter with its first request."""
        self._make_batch = make_batch
        self._adapters = adapters
        self._batches = {"": make_batch()}
        self._lora: dict[str, str] = {}
        """Of each request."""
        self._turns: deque[str] = deque()
        """Adapters with requests; whose turn is next stands first."""

    def add(self, key: str, prompt_ids: list[int], lora: str) -> None:
        """It waits until it fits."""
        if lora not in self._batches:
            self._batches[lora] = self._make_batch()
        self._batches[lora].add(key, prompt_ids)
        self._lora[key] = lora
        if lora not in self._turns:
            self._turns.append(lora)

    def remove(self, key: str) -> None:
        """Free its blocks now; full ones stay as reusable prefixes."""
        lora = self._lora.pop(key)
        self._batches[lora].remove(key)
        if lora not in self._lora.values():
            self._turns.remove(lora)

    def step(self) -> None:
        """One forward pass for the adapter whose turn it is. There must be a request. Raises: as ``Batch.step``."""
        lora = self._turns[0]
        self._turns.rotate(-1)
        with self._adapters.using(lora):
            self._batches[lora].step()

    def forget_prefixes(self) -> None:
        """Drop the whole KV cache. There must be no request."""
        for batch in self._batches.values():
            batch.forget_prefixes()

    def figures(self) -> dict[str, int]:
        """What they hold now, together."""
        total: Counter[str] = Counter()
        for batch in self._batches.values():
            total.update(batch.figures())
        return dict(total)
