"""The wire contract as the models read it: ``contract.json``, rendered beside ``model.py`` from the one table of the
client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

NUMPY_DTYPES: Mapping[str, type] = {
    "INT32": np.int32,
    "FP32": np.float32,
    "UINT64": np.uint64,
    "BOOL": np.bool_,
    "BYTES": np.object_,
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor. ``dims`` are without the leading batch dimension; -1 is any length."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    optional: bool


@dataclass(frozen=True, slots=True)
class Contract:
    """``inputs`` and ``outputs`` by tensor name."""

    model_name: str
    invalid_request_prefix: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]


def load_contract(directory: Path) -> Contract:
    """The contract in ``directory/contract.json``."""
    return parse_contract(json.loads((directory / "contract.json").read_text()))


def parse_contract(document: Mapping[str, Any]) -> Contract:
    """``document`` is what ``engine.contract.contract_document`` makes."""
    return Contract(
        model_name=document["model_name"],
        invalid_request_prefix=document["invalid_request_prefix"],
        inputs=_specs(document["inputs"]),
        outputs=_specs(document["outputs"]),
    )


def _specs(documents: list[dict[str, Any]]) -> dict[str, TensorSpec]:
    return {item["name"]: TensorSpec(**(item | {"dims": tuple(item["dims"])})) for item in documents}
