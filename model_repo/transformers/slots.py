"""The live requests as the sampler sees them, and the draw of one step for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .guided import GuideState
from .sampling import TokenHistory, draw, has_penalties


@dataclass(slots=True)
class Slot:
    """One live request; ``generation`` is a ``common.generation.Generation``.

    The rest is set when it is first scheduled, so that tensors are made on the stream that computes with them.
    ``history`` is there if there are penalties; ``end_ids``, int64 [n], if something depends on the request's end tokens:
    ``min_tokens``, which holds them back, or a guide, which lets them come only where it is complete.
    """

    key: str
    generation: Any
    guide: GuideState | None
    cached_tokens: int | None = None
    history: TokenHistory | None = None
    end_ids: Tensor | None = None

    @property
    def may_end(self) -> bool:
        """An end token would end the reply."""
        return not self.generation.stop_words.held

    @property
    def is_over(self) -> bool:
        """No token can follow: the grammar wants none, and there is no end token that may come."""
        return self.guide is not None and self.guide.over and not (self.end_ids is not None and self.may_end)


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

    def open(self, generation: Any, guide: GuideState | None) -> Slot:
        """A slot with a key that no other ever had: clients' ids may be empty, or used again."""
        self._opened += 1
        slot = Slot(str(self._opened), generation, guide)
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
        slot.end_ids = self._end_ids(slot)

    def draw(self, keys: Sequence[str], logits: Tensor) -> Tensor:
        slots = [self._slots[key] for key in keys]
        tokens = torch.stack([_next_token(slot, row) for slot, row in zip(slots, logits, strict=True)])
        chosen = logits.gather(1, tokens.unsqueeze(1)).squeeze(1)
        # A log prob is at most 0; rounding of the difference may put a near-certain token above it.
        log_probs = (chosen - logits.logsumexp(1)).clamp(max=0)
        pairs = zip(slots, tokens.tolist(), log_probs.tolist(), strict=True)
        self._drawn = [Drawn(slot, token, log_prob) for slot, token, log_prob in pairs]
        for drawn in self._drawn:
            _remember(drawn.slot, drawn.token)
        return tokens

    def take_drawn(self) -> list[Drawn]:
        """The tokens of the last step, once."""
        drawn, self._drawn = self._drawn, []
        return drawn

    def _history(self, request: Any) -> TokenHistory | None:
        if not has_penalties(request.sampling):
            return None
        return TokenHistory(request.prompt_ids, self._vocab_size, self._device)

    def _end_ids(self, slot: Slot) -> Tensor | None:
        request = slot.generation.request
        if not request.end_ids or not (request.sampling.min_tokens or slot.guide):
            return None
        return torch.tensor(request.end_ids, dtype=torch.int64, device=self._device)


def _next_token(slot: Slot, logits: Tensor) -> Tensor:
    """A guide's own mask says where end tokens may come; what it wants besides is no end, though it be an end token's id."""
    generation = slot.generation
    banned = allowed = None
    if slot.guide is not None:
        allowed = slot.guide.allowed(slot.end_ids if slot.may_end else None)
    elif not slot.may_end:
        banned = slot.end_ids
    return draw(logits, generation.request.sampling, len(generation.output_ids), slot.history, banned, allowed)


def _remember(slot: Slot, token: int) -> None:
    if slot.history is not None:
        slot.history.add(token)
    if slot.guide is not None and not (slot.may_end and token in slot.generation.request.end_ids):
        slot.guide.accept(token)
