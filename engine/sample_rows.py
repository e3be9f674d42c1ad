"""One exported sample, checked and made ready to be scored again. Pure.

A sample is the JSON object that ``rollserve export`` writes: ``tokens``, ``response_length``, ``loss_mask``,
``rollout_log_probs``, and in ``metadata["turns"]`` the spans of the response with what their log probs mean. Nothing
here trusts who wrote it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.sample_spans import SampleError, Span, read_spans
from engine.types import Ids, LogProbs

__all__ = ["NO_VERSION", "SampleError", "SampleRow", "Span", "read_sample"]


NO_VERSION = -1
"""Nobody recorded which weights sampled the token."""


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

    @property
    def scored(self) -> NDArray[np.bool_]:
        """Trained tokens that a model can score again: bool [R]."""
        scored = self.trained.copy()
        for span in self.spans:
            if not span.is_scorable:
                scored[span.start : span.end] = False
        return scored

    @property
    def models(self) -> frozenset[str]:
        """Served names of the weights that sampled what trains here, as far as they were recorded."""
        return frozenset(span.model for span in self.spans if span.model and self.trained[span.start : span.end].any())

    def of_model(self, name: str) -> SampleRow:
        """The row as if nothing trained that other weights sampled."""
        trained, spans = np.zeros_like(self.trained), tuple(span for span in self.spans if span.model == name)
        for span in spans:
            trained[span.start : span.end] = self.trained[span.start : span.end]
        return replace(self, trained=trained, spans=spans)

    @property
    def versions(self) -> Ids:
        """Weight version of each token of the response, int32 [R]."""
        versions = np.full(self.recorded.size, NO_VERSION, np.int32)
        for start, end, version in (run for span in self.spans for run in span.versions):
            versions[start:end] = version
        return versions

    @property
    def turns(self) -> Ids:
        """Turn index of each token of the response, int32 [R]; 0 where there is none."""
        turns = np.zeros(self.recorded.size, np.int32)
        for span in self.spans:
            turns[span.start : span.end] = span.turn_index or 0
        return turns


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
    spans = read_spans(sample, len(mask))
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
