"""Samples as a Parquet file: one row a sample, per-token values as lists.

    tokens list<int32>, loss_mask list<uint8>, rollout_log_probs list<float>, weight_versions list<string>
    index, group_index, rollout_id, response_length int64; response, status string
    prompt, label, metadata     any JSON, as a string; their fields carry the metadata ``encoding: json``
    reward double               null where it is an object or null; ``named_rewards``, JSON, holds the object

The file's own metadata has ``rollserve``: JSON with the session's name, its turn count and the export's ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from adapter.storage.errors import MissingExtra, StorageError

ABOUT = b"rollserve"

_JSON_COLUMNS = ("prompt", "label", "metadata", "named_rewards")


def write_parquet(samples: Sequence[Mapping[str, Any]], about: Mapping[str, Any], file: BinaryIO) -> None:
    """Raises: MissingExtra; StorageError, if a sample has a field that the schema does not."""
    pa, parquet = _pyarrow()
    schema = _schema(pa).with_metadata({ABOUT: orjson.dumps(about)})
    rows = [_to_columns(sample, schema.names) for sample in samples]
    parquet.write_table(pa.Table.from_pylist(rows, schema=schema), file, compression="zstd")


def read_parquet(path: Path) -> list[dict[str, Any]]:
    """The samples as they were written. Raises: MissingExtra, StorageError, OSError."""
    pa, parquet = _pyarrow()
    try:
        table = parquet.read_table(path)
    except pa.ArrowException as error:
        raise StorageError(f"{path} is not a Parquet file that can be read: {error}") from error
    if ABOUT not in (table.schema.metadata or {}):
        raise StorageError(f"{path} was not written by rollserve: the file's metadata has no {ABOUT.decode()!r}")
    return [_from_columns(row) for row in table.to_pylist()]


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingExtra("pyarrow", "parquet", "Parquet") from error
    except ImportError as error:
        raise StorageError(f"pyarrow is installed but cannot be loaded: {error}") from error
    return pyarrow, pyarrow.parquet


def _schema(pa: Any) -> Any:
    json = {name: pa.field(name, pa.string(), metadata={"encoding": "json"}) for name in _JSON_COLUMNS}
    return pa.schema(
        [
            pa.field("index", pa.int64()),
            pa.field("group_index", pa.int64()),
            pa.field("rollout_id", pa.int64()),
            json["prompt"],
            json["label"],
            pa.field("tokens", pa.list_(pa.int32())),
            pa.field("response", pa.string()),
            pa.field("response_length", pa.int64()),
            pa.field("loss_mask", pa.list_(pa.uint8())),
            pa.field("rollout_log_probs", pa.list_(pa.float32())),
            pa.field("reward", pa.float64()),
            json["named_rewards"],
            pa.field("status", pa.string()),
            json["metadata"],
            pa.field("weight_versions", pa.list_(pa.string())),
        ]
    )


def _to_columns(sample: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    unknown = sample.keys() - set(columns)
    if unknown:
        raise StorageError(f"the Parquet schema has no column for {', '.join(sorted(unknown))}")
    reward = sample.get("reward")
    named = isinstance(reward, Mapping)
    row = {**sample, "reward": None if named else reward, "named_rewards": reward if named else None}
    return row | {name: orjson.dumps(row.get(name)).decode() for name in _JSON_COLUMNS}


def _from_columns(row: dict[str, Any]) -> dict[str, Any]:
    sample = row | {name: orjson.loads(row[name]) for name in _JSON_COLUMNS}
    named = sample.pop("named_rewards")
    return sample if named is None else sample | {"reward": named}
