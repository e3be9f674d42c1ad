"""One sample as arrays over all of its tokens, for packing. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.types import Ids, LogProbs

_PER_TOKEN = ("tokens", "loss_mask", "rollout_log_probs")


class RowError(ValueError):
    """A sample, or a packed tree, contradicts itself; the message says where."""


@dataclass(frozen=True, slots=True, eq=False)
class FlatRow:
    """Arrays are [T] for T tokens, the prompt's included: ids int32, whether they train bool, log probs float32, the
    turn that sampled them and its weight version int32 (-1 where there is none, or nobody says). ``rest`` is the sample
    without its per-token lists."""

    tokens: Ids
    trained: NDArray[np.bool_]
    log_probs: LogProbs
    turns: Ids
    versions: Ids
    rest: dict[str, Any]
    prompt_length: int
    """Tokens of the whole row before its response."""

    @classmethod
    def empty(cls) -> FlatRow:
        ids = np.empty(0, np.int32)
        return cls(ids, np.empty(0, np.bool_), np.empty(0, np.float32), ids, ids, {}, 0)

    @property
    def size(self) -> int:
        """Tokens."""
        return int(self.tokens.size)

    def part(self, start: int, end: int) -> FlatRow:
        """Tokens ``[start, end)``: views of these arrays."""
        return self._map(lambda array: array[start:end])

    def copy(self) -> FlatRow:
        """With arrays of its own."""
        return self._map(lambda array: array.copy())

    def resized(self, size: int) -> FlatRow:
        """A longer copy; what the new tokens are is not defined."""
        return self._map(lambda array: np.concatenate([array, np.empty(size - array.size, array.dtype)]))

    def write(self, start: int, new: FlatRow) -> None:
        """Put ``new`` in place of the tokens from ``start`` on."""
        end = start + new.size
        self.tokens[start:end] = new.tokens
        self.trained[start:end] = new.trained
        self.log_probs[start:end] = new.log_probs
        self.turns[start:end] = new.turns
        self.versions[start:end] = new.versions

    def _map(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> FlatRow:
        return FlatRow(
            tokens=change(self.tokens),
            trained=change(self.trained),
            log_probs=change(self.log_probs),
            turns=change(self.turns),
            versions=change(self.versions),
            rest=self.rest,
            prompt_length=self.prompt_length,
        )


def read_row(row: Mapping[str, Any]) -> FlatRow:
    """Raises: RowError."""
    tokens = _integers(row, "tokens", high=2**31 - 1)
    mask = _integers(row, "loss_mask", high=1)
    log_probs = _floats(row, "rollout_log_probs")
    length = row.get("response_length")
    if not (length == mask.size == log_probs.size) or mask.size > tokens.size:
        raise RowError(
            f"{tokens.size} tokens, response_length {length}, {mask.size} in loss_mask, {log_probs.size} log probs"
        )
    if not tokens.size:
        raise RowError("there are no tokens")
    if log_probs[mask == 0].any():
        raise RowError("a token that does not train has a log prob other than 0.0")
    prompt = np.full(tokens.size - mask.size, -1, np.int32)
    turns, versions = _spans(row, mask.size)
    return FlatRow(
        tokens=tokens,
        trained=np.concatenate([np.zeros(prompt.size, np.bool_), mask.astype(np.bool_)]),
        log_probs=np.concatenate([np.zeros(prompt.size, np.float32), log_probs]),
        turns=np.concatenate([prompt, turns]),
        versions=np.concatenate([prompt, versions]),
        rest={key: value for key, value in row.items() if key not in _PER_TOKEN},
        prompt_length=prompt.size,
    )


def _array(row: Mapping[str, Any], name: str) -> NDArray[Any]:
    if not isinstance(row.get(name), list | np.ndarray):
        raise RowError(f"{name} is missing or no list")
    try:
        array = np.asarray(row[name])
    except ValueError as error:
        raise RowError(f"{name} is no list of numbers") from error
    if array.ndim != 1:
        raise RowError(f"{name} has {array.ndim} dimensions, not 1")
    return array


def _integers(row: Mapping[str, Any], name: str, high: int) -> Ids:
    array = _array(row, name)
    if array.size and (array.dtype.kind not in "iu" or array.min() < 0 or array.max() > high):
        raise RowError(f"{name} holds something else than integers from 0 to {high}")
    return array.astype(np.int32)


def _floats(row: Mapping[str, Any], name: str) -> LogProbs:
    array = _array(row, name)
    if array.size and array.dtype.kind not in "iuf":
        raise RowError(f"{name} holds something else than numbers")
    return array.astype(np.float32)


def _spans(row: Mapping[str, Any], length: int) -> tuple[Ids, Ids]:
    """Turn and weight version of each token of the response, as far as the metadata says."""
    turns, versions = np.full(length, -1, np.int32), np.full(length, -1, np.int32)
    try:
        for turn in (row.get("metadata") or {}).get("turns", ()):
            turns[turn["start"] : turn["end"]] = turn["turn_index"]
            for start, end, version in turn["versions"]:
                versions[start:end] = version
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise RowError(f"metadata.turns is not as an export writes it: {error!r}") from error
    return turns, versions
