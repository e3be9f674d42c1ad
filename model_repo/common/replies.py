"""Responses as named arrays, in the contract's shapes, and the sender that they leave through.

tokens    output_ids [1, 1, n] INT32, sequence_length [1, 1] INT32, weight_version [1, 1] INT32; with log probs also
          output_log_probs [1, 1, n] FP32 (of the sampled ids only) and cum_log_probs [1, 1] FP32 (running sum)
final     the same, and finish_reason [1, 1] BYTES, cached_tokens [1, 1] INT32
control   control_reply [1, 1] BYTES
stop      nothing
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Outputs = Mapping[str, NDArray[Any]]


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    """An end token or a stop word was sampled; it is the tail of the output ids."""
    LENGTH = "length"
    """The request's token limit was reached."""
    CANCELLED = "cancelled"
    """By the ``stop`` tensor or a cancelled call."""


class Sender(Protocol):
    """One request's way back to its client. A client that is gone is not an error: what is sent to it vanishes."""

    def send(self, outputs: Outputs, *, final: bool) -> None:
        """Send one response; ``final`` ends the request."""
        ...

    def fail(self, message: str) -> None:
        """Send an error, which ends the request."""
        ...

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the call or is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Tokens:
    """Content of one response. ``ids`` may begin with the prompt's, so ``log_probs`` may be shorter; None leaves them
    out."""

    ids: Sequence[int] | NDArray[np.int32]
    log_probs: Sequence[float] | None
    cum_log_prob: float
    weight_version: int


def token_outputs(tokens: Tokens) -> dict[str, NDArray[Any]]:
    """A response with tokens."""
    outputs: dict[str, NDArray[Any]] = {
        "output_ids": np.asarray(tokens.ids, dtype=np.int32).reshape(1, 1, -1),
        "sequence_length": np.array([[len(tokens.ids)]], dtype=np.int32),
        "weight_version": np.array([[tokens.weight_version]], dtype=np.int32),
    }
    if tokens.log_probs is not None:
        outputs["output_log_probs"] = np.asarray(tokens.log_probs, dtype=np.float32).reshape(1, 1, -1)
        outputs["cum_log_probs"] = np.array([[tokens.cum_log_prob]], dtype=np.float32)
    return outputs


def final_outputs(tokens: Tokens, reason: FinishReason, cached_tokens: int) -> dict[str, NDArray[Any]]:
    """The last response of a generation."""
    return token_outputs(tokens) | {
        "finish_reason": _bytes(str(reason).encode()),
        "cached_tokens": np.array([[cached_tokens]], dtype=np.int32),
    }


def control_outputs(reply: bytes) -> dict[str, NDArray[Any]]:
    """The answer to a control request."""
    return {"control_reply": _bytes(reply)}


def _bytes(value: bytes) -> NDArray[Any]:
    return np.array([[value]], dtype=np.object_)
