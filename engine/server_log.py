"""Read the reason of a failure out of a tritonserver's log."""

from __future__ import annotations

import re
from pathlib import Path

_MAX_LINES = 20
_TAIL_BYTES = 64 * 1024
_TROUBLE = re.compile(rb"^(?:[EF]\d{4} |error:|cannot start |.*error while loading shared libraries)", re.IGNORECASE)
"""Triton's error and fatal lines (``E1130 17:04:05.123 ...``), its last words on stderr, the guard's, the loader's."""
_HARMLESS = re.compile(rb"NVML|DCGM|CUDA|no CUDA-capable|GPU", re.IGNORECASE)
"""Without a GPU the server complains and goes on."""


def failure_reason(log_path: Path) -> str:
    """The log's last error lines, or its last lines if there are none; empty for an empty log."""
    lines = _tail(log_path)
    trouble = [line for line in lines if _TROUBLE.match(line) and not _HARMLESS.search(line)]
    return b"\n".join((trouble or lines)[-_MAX_LINES:]).decode(errors="replace")


def _tail(log_path: Path) -> list[bytes]:
    with log_path.open("rb") as log:
        log.seek(0, 2)
        log.seek(max(0, log.tell() - _TAIL_BYTES))
        return log.read().splitlines()
