"""Files of samples, as JSON lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from engine.sample_rows import SampleError


def read_jsonl(path: Path) -> list[Mapping[str, Any]]:
    """Samples of a JSONL file, blank lines left out. Raises: SampleError, OSError."""
    samples: list[Mapping[str, Any]] = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            sample = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise SampleError(f"{path}:{number} is not JSON: {error}") from error
        if not isinstance(sample, dict):
            raise SampleError(f"{path}:{number} is not a JSON object")
        samples.append(sample)
    return samples
