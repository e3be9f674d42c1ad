"""The live requests as the sampler sees them, and the draw of one step for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .sampling import TokenHistory, draw, has_penalties


@dataclass(slots=True)
class Slot:
    """One live request; ``generation`` is a ``common.generation.Generation``.

    The rest is set when it is first scheduled, so that tensors are made on the stream that computes with them.
    ``history`` is there if there are penalties; ``banned``, int64 [n], are the end tokens that ``min_tokens`` holds
    back.
    """

    key: str
    generation: Any
    cached_tokens: int | None = None
    history: TokenHistory | None = None
    banned: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token of one request. ``log_prob`` is of the model's own distribution; NaN when that is broken."""

    slot: Slot
    token: int
    log_prob: float


class Slots:
    """Slots by key; a ``batch.RowSampler``. Used from one thread."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._slots: dict[str, Slot] = {}
        self._drawn: list[Drawn] = []
        self._opened = 0

    def __len__(self) -> int:
        return len(self._slots)

    def all(self) -> list[Slot]:
        return list(self._slots.values())

    def open(self, generation: Any) -> Slot:
        """A slot with a key that no other ever had: clients' ids may be empty, or used again."""
        self._opened += 1
        slot = Slot(str(self._opened), generation)
        self._slots[slot.key] = slot
        return slot

    def close(self, slot: Slot) -> None:
        del self._slots[slot.key]

    def scheduled(self, key: str, cached_tokens: int) -> None:
        """The first time counts: a request that was preempted comes back with its own tokens in the cache."""
        slot = self._slots[key]
        if slot.cached_tokens is not None:
            return
        slot.cached_tokens = cached_tokens
        slot.history = self._history(slot.generation.request)
        slot.banned = self._banned(slot.generation.request)

    def draw(self, keys: Sequence[str], logits: Tensor) -> Tensor:
        slots = [self._slots[key] for key in keys]
        tokens = torch.stack([_next_token(slot, row) for slot, row in zip(slots, logits, strict=True)])
        chosen = logits.gather(1, tokens.unsqueeze(1)).squeeze(1)
        # A log prob is at most 0; rounding of the difference may put a near-certain token above it.
        log_probs = (chosen - logits.logsumexp(1)).clamp(max=0)
        pairs = zip(slots, tokens.tolist(), log_probs.tolist(), strict=True)
        self._drawn = [Drawn(slot, token, log_prob) for slot, token, log_prob in pairs]
        for drawn in self._drawn:
            if drawn.slot.history is not None:
                drawn.slot.history.add(drawn.token)
        return tokens

    def take_drawn(self) -> list[Drawn]:
        """The tokens of the last step, once."""
        drawn, self._drawn = self._drawn, []
        return drawn

    def _history(self, request: Any) -> TokenHistory | None:
        if not has_penalties(request.sampling):
            return None
        return TokenHistory(request.prompt_ids, self._vocab_size, self._device)

    def _banned(self, request: Any) -> Tensor | None:
        if not request.end_ids or not request.sampling.min_tokens:
            return None
        return torch.tensor(request.end_ids, dtype=torch.int64, device=self._device)


def _next_token(slot: Slot, logits: Tensor) -> Tensor:
    generation = slot.generation
    banned = slot.banned if generation.stop_words.held else None
    return draw(logits, generation.request.sampling, len(generation.output_ids), slot.history, banned)
