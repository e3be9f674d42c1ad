"""One exported sample, checked and made ready to be scored again. Pure.

A sample is the JSON object that ``rollserve export`` writes: ``tokens``, ``response_length``, ``loss_mask``,
``rollout_log_probs``, and in ``metadata["turns"]`` the spans of the response with what their log probs mean. Nothing
here trusts who wrote it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.types import Ids, LogProbMode, LogProbs


class SampleError(ValueError):
    """The sample contradicts itself; the message says where."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens ``[start, end)`` of the response are one turn's output, sampled so."""

    start: int
    end: int
    mode: LogProbMode
    temperature: float
    top_p: float
    top_k: int

    @property
    def is_certain(self) -> bool:
        """Whether every recorded log prob is 0 by definition: greedy, and the log of what was sampled from."""
        return self.mode is LogProbMode.PROCESSED and (self.temperature == 0 or self.top_k == 1)


@dataclass(frozen=True, slots=True)
class SampleRow:
    """``tokens`` int32 [P + R], ``recorded`` float32 [R], ``trained`` bool [R]; each trained token lies in one span."""

    tokens: Ids
    recorded: LogProbs
    trained: NDArray[np.bool_]
    spans: tuple[Span, ...]

    @property
    def prompt_length(self) -> int:
        return int(self.tokens.size - self.recorded.size)


def read_sample(sample: Mapping[str, Any], vocab_size: int) -> SampleRow:
    """Raises: SampleError."""
    tokens = _integers(sample, "tokens", 0, vocab_size - 1)
    mask = _integers(sample, "loss_mask", 0, 1).astype(np.bool_)
    recorded = _log_probs(sample)
    length = sample.get("response_length")
    if not (length == len(mask) == len(recorded)):
        raise SampleError(
            f"response_length is {length}, loss_mask has {len(mask)} entries, rollout_log_probs {len(recorded)}"
        )
    if not 0 < len(mask) < len(tokens):
        raise SampleError(f"{len(tokens)} tokens cannot hold a prompt and a response of {len(mask)}")
    _check_log_probs(recorded, mask)
    spans = _spans(sample, len(mask))
    covered = np.zeros(len(mask), np.int64)
    for span in spans:
        covered[span.start : span.end] += 1
    if (covered > 1).any():
        raise SampleError("metadata.turns overlap")
    if (mask & (covered == 0)).any():
        raise SampleError(
            f"response token {int(np.argmax(mask & (covered == 0)))} is trained but lies in no trained turn"
        )
    return SampleRow(tokens, recorded, mask, spans)


def _list(sample: Mapping[str, Any], key: str) -> list[Any]:
    values = sample.get(key)
    if not isinstance(values, list):
        raise SampleError(f"{key} is missing or not a list")
    return values


def _integers(sample: Mapping[str, Any], key: str, low: int, high: int) -> Ids:
    values = _list(sample, key)
    for position, value in enumerate(values):
        if type(value) is not int or not low <= value <= high:
            raise SampleError(f"{key}[{position}] is {value!r}, not an integer from {low} to {high}")
    return np.array(values, dtype=np.int32)


def _log_probs(sample: Mapping[str, Any]) -> LogProbs:
    values = _list(sample, "rollout_log_probs")
    for position, value in enumerate(values):
        if type(value) not in (int, float) or not math.isfinite(value):
            raise SampleError(f"rollout_log_probs[{position}] is {value!r}, not a finite number")
    return np.array(values, dtype=np.float32)


def _check_log_probs(recorded: LogProbs, mask: NDArray[np.bool_]) -> None:
    if (recorded > 0).any():
        position = int(np.argmax(recorded > 0))
        raise SampleError(f"rollout_log_probs[{position}] is {recorded[position]}, above 0")
    stray = ~mask & (recorded != 0)
    if stray.any():
        raise SampleError(f"rollout_log_probs[{int(np.argmax(stray))}] is not 0.0 though its token is not trained")


def _spans(sample: Mapping[str, Any], length: int) -> tuple[Span, ...]:
    metadata = sample.get("metadata")
    turns = metadata.get("turns") if isinstance(metadata, Mapping) else None
    if not isinstance(turns, Sequence) or isinstance(turns, str):
        raise SampleError("metadata.turns is missing: nothing says what the log probs are the log of")
    return tuple(_span(turn, f"metadata.turns[{i}]", length) for i, turn in enumerate(turns) if _is_trained(turn))


def _is_trained(turn: Any) -> bool:
    return not isinstance(turn, Mapping) or turn.get("trained", True) is not False


def _span(turn: Any, where: str, length: int) -> Span:
    if not isinstance(turn, Mapping):
        raise SampleError(f"{where} is not an object")
    start, end = turn.get("start"), turn.get("end")
    if type(start) is not int or type(end) is not int or not 0 <= start <= end <= length:
        raise SampleError(f"{where}: [{start}, {end}) is no span of a response of {length} tokens")
    mode = turn.get("log_prob_mode")
    if mode not in list(LogProbMode):
        raise SampleError(f"{where}.log_prob_mode is {mode!r}: nothing says what the log probs are the log of")
    if mode == LogProbMode.RAW:
        return Span(start, end, LogProbMode.RAW, temperature=1.0, top_p=1.0, top_k=0)
    return Span(
        start,
        end,
        LogProbMode.PROCESSED,
        temperature=_number(turn, where, "temperature", 0.0, math.inf),
        top_p=_number(turn, where, "top_p", 0.0, 1.0),
        top_k=int(_number(turn, where, "top_k", 0, 2**31 - 1)),
    )


def _number(turn: Mapping[str, Any], where: str, key: str, low: float, high: float) -> float:
    value = turn.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise SampleError(f"{where}.{key} is {value!r}, not a number from {low} to {high}")
    return float(value)
