"""Operations on the model itself: the ``control`` input, a JSON object with ``op``, and its answer.

    {"op": "stats"}                                         the model's figures
    {"op": "flush"}                                         forget the whole KV cache
    {"op": "update_weights", "version": N, "path": "..."}   later tokens come from weights N, the checkpoint at ``path``

New weights are refused while requests are live; the same ones under the same version again are in force already, which is no error.

The answer is one final response whose output ``control_reply`` (BYTES [1, 1]) is a JSON object; every answer has ``op``
and ``weight_version``; those of ``stats`` and ``update_weights`` have ``path``, where the weights come from, that of ``stats`` also
``vocab_size``, ``max_seq_len``, ``log_prob_mode``, ``guided_decoding`` and ``loras`` (lists of names, in order), ``live`` (requests
that have not ended) and ``instance``, another text after each start of the model. A refused operation is an error response, like a
refused request.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class ControlError(ValueError):
    """The ``control`` tensor is not a known operation."""


class ControlOp(StrEnum):
    """What can be asked of a model."""

    STATS = "stats"
    """Report figures."""
    FLUSH = "flush"
    """Drop all cached prefixes."""
    UPDATE_WEIGHTS = "update_weights"
    """Swap the weights."""


@dataclass(frozen=True, slots=True)
class Control:
    """``version`` is given with update_weights only; ``path`` may be."""

    op: ControlOp
    version: int | None = None
    path: str | None = None


def parse_control(text: bytes | str) -> Control:
    """Raises: ControlError, saying what is wrong."""
    try:
        document = json.loads(text)
    except ValueError:
        raise ControlError("not JSON") from None
    if not isinstance(document, dict):
        raise ControlError("not a JSON object")
    operation = document.get("op")
    if operation not in list(ControlOp):
        raise ControlError(f"op {operation!r} is not one of {', '.join(ControlOp)}")
    op = ControlOp(operation)
    allowed = {"op", "version", "path"} if op is ControlOp.UPDATE_WEIGHTS else {"op"}
    if unknown := sorted(set(document) - allowed):
        raise ControlError(f"unknown key {unknown[0]!r} for {op}")
    return Control(op, _version(document) if op is ControlOp.UPDATE_WEIGHTS else None, _path(document))


def control_reply(document: dict[str, Any]) -> bytes:
    """The answer's text."""
    return json.dumps(document, separators=(",", ":")).encode()


def _version(document: dict[str, Any]) -> int:
    version = document.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 2**31:
        raise ControlError("version is not an integer between 0 and 2147483647")
    return version


def _path(document: dict[str, Any]) -> str | None:
    path = document.get("path")
    if path is not None and (not isinstance(path, str) or not path):
        raise ControlError("path is not a text")
    return path
