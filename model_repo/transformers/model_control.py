"""Operations on the model as a whole, between two steps of the loop (``common.control`` has the wire form)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from .batches import Batches
from .weights import WeightsError, replace_weights


class ModelControl:
    """The weights in force, and what may be done to them. ``limits``, for ``stats``: vocab_size and max_seq_len."""

    def __init__(self, model: nn.Module, weight_version: int, limits: dict[str, int]) -> None:
        self.weight_version = weight_version
        self._model = model
        self._limits = limits

    def perform(self, call: Any, figures: dict[str, int], batch: Batches | None) -> None:
        """Do ``call.control`` and answer ``call``. ``figures`` has ``live``, how many requests have not ended."""
        if call.control.op == "stats":
            call.answer(self.weight_version, **self._limits, **figures)
        elif figures["live"]:
            call.fail(f"{call.control.op}: {figures['live']} requests are live; end or cancel them first")
        elif call.control.op == "flush":
            _forget_prefixes(batch)
            call.answer(self.weight_version)
        else:
            self._update_weights(call, batch)

    def _update_weights(self, call: Any, batch: Batches | None) -> None:
        if call.control.path is None:
            call.fail("update_weights: path is missing; it names a safetensors file or a folder of them")
            return
        try:
            replace_weights(self._model, Path(call.control.path))
        except WeightsError as error:
            call.fail(f"update_weights: {error}")
            return
        # Keys and values of the old weights must not serve as a prefix under the new ones.
        _forget_prefixes(batch)
        self.weight_version = call.control.version
        call.answer(self.weight_version)


def _forget_prefixes(batch: Batches | None) -> None:
    if batch is not None:
        batch.forget_prefixes()
