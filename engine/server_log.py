"""Read the reason of a failure out of a tritonserver's log."""

from __future__ import annotations

import re
from pathlib import Path

_MAX_LINES = 20
_MAX_BYTES = 256 * 1024
_TROUBLE = re.compile(rb"(?:[EF]\d{4} |error:|cannot start |.*error while loading shared libraries)", re.IGNORECASE)
"""Triton's error and fatal lines (``E1130 17:04:05.123 ...``), its last words on stderr, the guard's, the loader's."""
_HARMLESS = re.compile(rb"NVML|DCGM|Cuda|GPU")
"""Without a GPU the server complains and goes on."""


def failure_reason(log_path: Path, start: int) -> str:
    """The last error lines from the offset ``start`` on, or the last lines if there are none."""
    lines = _lines(log_path, start)
    trouble = [line for line in lines if _TROUBLE.match(line) and not _HARMLESS.search(line)]
    return b"\n".join((trouble or lines)[-_MAX_LINES:]).decode(errors="replace")


def _lines(log_path: Path, start: int) -> list[bytes]:
    with log_path.open("rb") as log:
        log.seek(max(start, log.seek(0, 2) - _MAX_BYTES))
        return log.read().splitlines()
