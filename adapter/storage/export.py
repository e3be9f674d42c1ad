"""Samples as files."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson


def write_jsonl(samples: Iterable[Mapping[str, Any]], path: Path | None) -> None:
    """One JSON object a line; to standard output without a path. A file appears whole or not at all."""
    lines = b"".join(orjson.dumps(sample) + b"\n" for sample in samples)
    if path is None:
        sys.stdout.buffer.write(lines)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(lines)
    part.replace(path)
