"""Operations on the model as a whole, between two steps of the loop (``common.control`` has the wire form).

Weights change only while no request is live, so every reply has been sampled by one version from its first token to its last. New
ones are read and checked before anything is written: where they cannot be taken, the old ones and their version stay in force.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from .batches import Batches
from .weights import WeightsError, replace_weights


class ModelControl:
    """The weights in force, and what may be done to them. ``limits``, for ``stats``: vocab_size and max_seq_len; ``path`` is where
    the weights were loaded from."""

    def __init__(self, model: nn.Module, weight_version: int, limits: dict[str, int], path: str = "") -> None:
        self.weight_version = weight_version
        self._path = path
        self._model = model
        self._limits = limits

    def perform(self, call: Any, figures: dict[str, int], batch: Batches | None) -> None:
        """Do ``call.control`` and answer ``call``. ``figures`` has ``live``, how many requests have not ended."""
        if call.control.op == "stats":
            call.answer(self.weight_version, path=self._path, **self._limits, **figures)
        elif call.control.op == "update_weights" and self._has(call.control):
            call.answer(self.weight_version, path=self._path)
        elif figures["live"]:
            call.fail(f"{call.control.op}: {figures['live']} requests are live; end or cancel them first")
        elif call.control.op == "flush":
            _forget_prefixes(batch)
            call.answer(self.weight_version)
        else:
            self._update_weights(call, batch)

    def _has(self, wanted: Any) -> bool:
        """Whether the weights asked for are in force: whoever asks twice, not knowing that the first was heard, loses no time."""
        return bool(wanted.version == self.weight_version and wanted.path == self._path)

    def _update_weights(self, call: Any, batch: Batches | None) -> None:
        if call.control.path is None:
            call.fail("update_weights: path is missing; it names a safetensors file or a folder of them")
            return
        if call.control.version == self.weight_version:
            call.fail(
                f"update_weights: version {self.weight_version} are the weights of {self._path}; give others another"
            )
            return
        try:
            replace_weights(self._model, Path(call.control.path))
        except WeightsError as error:
            call.fail(f"update_weights: {error}")
            return
        # Keys and values of the old weights must not serve as a prefix under the new ones.
        _forget_prefixes(batch)
        self.weight_version, self._path = call.control.version, call.control.path
        call.answer(self.weight_version, path=self._path)


def _forget_prefixes(batch: Batches | None) -> None:
    if batch is not None:
        batch.forget_prefixes()
