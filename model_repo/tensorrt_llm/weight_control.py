"""Operations on the model as a whole (``common.control`` has the wire form).

Weights change only while no request is live, so every reply has been sampled by one version from its first token to its last. New
ones are looked at before the old ones are given up. Should loading them fail all the same, the old ones are loaded again; should
that fail too, the model is out of order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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

    def answers_at_once(self, call: Any, figures: dict[str, Any], *, is_broken: bool) -> bool:
        """Answer what touches nothing, and refuse what must not be done now. ``figures`` has ``live``; where the engine is broken,
        the weights in force are nowhere, and the same ones may bring it back."""
        if call.control.op == "stats":
            call.answer(self.weight_version, path=self._path, **self._limits, **figures)
        elif call.control.op == "update_weights" and self._has(call.control) and not is_broken:
            call.answer(self.weight_version, path=self._path)
        elif figures["live"]:
            call.fail(f"{call.control.op}: {figures['live']} requests are live; end or cancel them first")
        elif call.control.op == "update_weights" and call.control.path is None:
            call.fail("update_weights: path is missing; it names a safetensors file or a folder of them")
        elif call.control.op == "update_weights" and self._is_taken(call.control):
            call.fail(
                f"update_weights: version {self.weight_version} are the weights of {self._path}; give others another"
            )
        else:
            return False
        return True

    def perform(self, call: Any) -> Callable[[], None]:
        """Flush, or take new weights, which may take minutes; what is returned answers the call. Raises: OutOfOrder."""
        try:
            return self._flush(call) if call.control.op == "flush" else self._update_weights(call)
        except OutOfOrder:
            raise
        except Exception as error:
            raise OutOfOrder(f"the model is out of order since {call.control.op} broke: {error!r}") from error

    def restore(self) -> None:
        """The engine anew with the weights in force. Raises: OutOfOrder."""
        try:
            self._engine.reload(Path(self._path))
        except EngineFault as error:
            raise OutOfOrder(f"the model is out of order since its engine broke: {error}") from error

    def _has(self, wanted: Any) -> bool:
        """Whether the weights asked for are in force: whoever asks twice, not knowing that the first was heard, loses no time."""
        return bool(wanted.version == self.weight_version and wanted.path == self._path)

    def _is_taken(self, wanted: Any) -> bool:
        """Whether other weights have the version asked for."""
        return bool(wanted.version == self.weight_version and wanted.path != self._path)

    def _flush(self, call: Any) -> Callable[[], None]:
        if not self._engine.forget_prefixes():
            self.restore()
        return partial(call.answer, self.weight_version)

    def _update_weights(self, call: Any) -> Callable[[], None]:
        path = Path(call.control.path)
        try:
            self._engine.check_weights(path)
        except CheckpointError as error:
            return partial(call.fail, f"update_weights: {error}")
        try:
            if self._engine.updates_in_place:
                self._engine.load_in_place(path)
            else:
                self._engine.reload(path)
        except Exception as error:
            self.restore()
            return partial(call.fail, f"update_weights: {error}; version {self.weight_version} is in force again")
        self.weight_version, self._path = call.control.version, call.control.path
        return partial(call.answer, self.weight_version, path=self._path)
