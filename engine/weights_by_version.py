"""Several checkpoints as one model for verification: each token is scored by the weights whose version it carries.

A reply that was cut for a weight update has tokens of two versions. Each is scored given all ids before it, whoever sampled those:
that is what the engine did when it went on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from engine.sample_rows import NO_VERSION, SampleRow
from engine.types import LogProbs


class RowScorer(Protocol):
    """``engine.rescore.PlainModel``."""

    @property
    def vocab_size(self) -> int: ...

    def log_probs(self, row: SampleRow) -> LogProbs: ...


class WeightsByVersion:
    """A ``verify.Scorer``. Checkpoints are loaded when a token first needs them, and all are kept."""

    def __init__(self, paths: Mapping[int, Path], load: Callable[[Path], RowScorer]) -> None:
        """``paths`` by version, at least one. Raises: OSError, if the first is none."""
        self._paths = dict(paths)
        self._load = load
        self._models: dict[int, RowScorer] = {}
        self._vocab_size = self._model(next(iter(self._paths))).vocab_size

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def log_probs(self, row: SampleRow) -> LogProbs:
        """Of each token to be scored, in order: float32 [number of them]. Raises: OSError, if weights are missing."""
        scored, versions = row.scored, row.versions
        found = np.empty(scored.size, np.float32)
        for version in sorted(set(versions[scored].tolist())):
            own = scored & (versions == version)
            found[own] = self._model(version).log_probs(replace(row, trained=own))
        return found[scored]

    def _model(self, version: int) -> RowScorer:
        if version not in self._paths:
            raise FileNotFoundError(_missing(version, self._paths))
        if version not in self._models:
            self._models[version] = self._load(self._paths[version])
        return self._models[version]


def read_weights(items: Sequence[str]) -> dict[int, Path]:
    """Each ``VERSION=PATH``. Raises: ValueError, naming the one that is not so, or is there twice."""
    found: dict[int, Path] = {}
    for item in items:
        version, equals, path = item.partition("=")
        if not equals or not path or not (version.isascii() and version.isdigit()):
            raise ValueError(f"{item!r} is not VERSION=PATH, with a version that is a whole number")
        if int(version) in found:
            raise ValueError(f"version {version} is given twice")
        found[int(version)] = Path(path)
    return found


def _missing(version: int, paths: Mapping[int, Path]) -> str:
    given = ", ".join(map(str, sorted(paths)))
    if version == NO_VERSION:
        return "a token was recorded without its weight version, so it cannot be scored by version; use --model"
    return f"no weights of version {version} (there are: {given}); give --weights {version}=PATH"
