"""Operations on the model as a whole (``common.control`` has the wire form).

Weights change only while no request is live, so every reply has been sampled by one version from its first token to its last. New
ones are looked at before the old ones are given up. Should loading them fail all the same, the old ones are loaded again; should
that fail too, the model is out of order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .checkpoint import CheckpointError
from .llm_engine import LlmEngine
from .tokens import EngineFault


class OutOfOrder(RuntimeError):
    """There is no engine any more; the message says why."""


class WeightControl:
    """The weights in force, and what may be done to them. ``limits``, for ``stats``: vocab_size and max_seq_len."""

    def __init__(self, engine: LlmEngine, weight_version: int, path: str, limits: dict[str, int]) -> None:
        self.weight_version = weight_version
        self._path = path
        self._engine = engine
        self._limits = limits

    def answers_at_once(self, call: Any, figures: dict[str, Any]) -> bool:
        """Answer what touches nothing, and refuse what must not be done now. ``figures`` has ``live``."""
        if call.control.op == "stats":
            call.answer(self.weight_version, path=self._path, **self._limits, **figures)
        elif call.control.op == "update_weights" and self._has(call.control):
            call.answer(self.weight_version, path=self._path)
        elif figures["live"]:
            call.fail(f"{call.control.op}: {figures['live']} requests are live; end or cancel them first")
        elif call.control.op == "update_weights" and call.control.path is None:
            call.fail("update_weights: path is missing; it names a safetensors file or a folder of them")
        elif call.control.op == "update_weights" and call.control.version == self.weight_version:
            call.fail(
                f"update_weights: version {self.weight_version} are the weights of {self._path}; give others another"
            )
        else:
            return False
        return True

    def perform(self, call: Any) -> None:
        """Flush, or take new weights; this may take minutes. Raises: OutOfOrder, after the call was answered."""
        if call.control.op == "flush":
            self._flush(call)
        else:
            self._update_weights(call)

    def restore(self) -> None:
        """The engine anew with the weights in force. Raises: OutOfOrder."""
        try:
            self._engine.reload(Path(self._path))
        except EngineFault as error:
            raise OutOfOrder(f"the model is out of order since its engine broke: {error}") from error

    def _has(self, wanted: Any) -> bool:
        """Whether the weights asked for are in force: whoever asks twice, not knowing that the first was heard, loses no time."""
        return bool(wanted.version == self.weight_version and wanted.path == self._path)

    def _flush(self, call: Any) -> None:
        if not self._engine.forget_prefixes():
            try:
                self.restore()
            except OutOfOrder as error:
                call.fail(f"flush: {error}")
                raise
        call.answer(self.weight_version)

    def _update_weights(self, call: Any) -> None:
        path = Path(call.control.path)
        try:
            self._engine.check_weights(path)
        except CheckpointError as error:
            call.fail(f"update_weights: {error}")
            return
        try:
            if self._engine.updates_in_place:
                self._engine.load_in_place(path)
            else:
                self._engine.reload(path)
        except Exception as error:
            self._go_back(call, error)
            return
        self.weight_version, self._path = call.control.version, call.control.path
        call.answer(self.weight_version, path=self._path)

    def _go_back(self, call: Any, error: Exception) -> None:
        try:
            self.restore()
        except OutOfOrder as second:
            call.fail(f"update_weights: {error}; and then: {second}")
            raise
        call.fail(f"update_weights: {error}; version {self.weight_version} is in force again")
