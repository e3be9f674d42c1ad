"""Exports as files: rows as JSON lines or Parquet, or the packed tree. A file appears whole or not at all.

An *answer* is what ``finish`` gives: ``sid``, ``turn_count``, ``samples``, ``ledger``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from adapter.storage.atomic import write_atomically
from adapter.storage.errors import StorageError
from adapter.storage.packed import NPZ, read_packed, write_packed
from adapter.storage.parquet import read_parquet, write_parquet
from adapter.trajectory.packing import PackedTree, RowError, pack, unpack


class ExportFormat(StrEnum):
    """What an export is written as."""

    JSONL = "jsonl"
    """One JSON object a sample."""
    PARQUET = "parquet"
    """One row a sample; needs the extra ``parquet``."""
    PACKED = "packed"
    """One tree of all samples, each distinct token once: ``.npz``, or JSON under any other name."""

    @classmethod
    def of(cls, path: Path | None) -> ExportFormat:
        """What the file's name says: ``.parquet``; ``.npz`` and ``.json`` are packed; else JSON lines."""
        by_suffix = {".parquet": cls.PARQUET, NPZ: cls.PACKED, ".json": cls.PACKED}
        return cls.JSONL if path is None else by_suffix.get(path.suffix, cls.JSONL)


def write_export(answer: Mapping[str, Any], path: Path | None, format: ExportFormat | None = None) -> None:
    """Write the samples of an answer; to standard output without a path. ``format`` None goes by the file's name.

    Raises: StorageError, OSError.
    """
    chosen = ExportFormat.of(path) if format is None else ExportFormat(format)
    if path is None:
        if chosen is ExportFormat.PARQUET:
            raise StorageError("Parquet is written to a file; name one")
        _write(answer, chosen, "", sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    write_atomically(path, lambda file: _write(answer, chosen, path.suffix, file))


def write_jsonl(samples: Iterable[Mapping[str, Any]], path: Path | None) -> None:
    """One JSON object a line; to standard output without a path."""
    write_export({"samples": list(samples)}, path, ExportFormat.JSONL)


def read_samples(path: Path) -> list[dict[str, Any]]:
    """The samples of a file that ``write_export`` wrote, whatever its format; the file's name says which.

    Raises: StorageError, OSError.
    """
    match ExportFormat.of(path):
        case ExportFormat.PARQUET:
            return read_parquet(path)
        case ExportFormat.PACKED:
            try:
                return unpack(read_packed(path))
            except RowError as error:
                raise StorageError(f"{path}: {error}") from error
        case ExportFormat.JSONL:
            return [_json_line(line, f"{path}:{number}") for number, line in _lines(path)]


def _write(answer: Mapping[str, Any], format: ExportFormat, suffix: str, file: BinaryIO) -> None:
    samples = answer["samples"]
    about = {key: value for key, value in answer.items() if key != "samples"}
    match format:
        case ExportFormat.JSONL:
            file.writelines(orjson.dumps(sample) + b"\n" for sample in samples)
        case ExportFormat.PARQUET:
            write_parquet(samples, about, file)
        case ExportFormat.PACKED:
            write_packed(_packed(samples), about, file, suffix)


def _packed(samples: Iterable[Mapping[str, Any]]) -> PackedTree:
    try:
        return pack(samples)
    except RowError as error:
        raise StorageError(f"the samples cannot be packed: {error}") from error


def _lines(path: Path) -> Iterable[tuple[int, bytes]]:
    lines = enumerate(path.read_bytes().split(b"\n"), start=1)
    return ((number, line) for number, line in lines if line.strip())


def _json_line(line: bytes, where: str) -> dict[str, Any]:
    try:
        sample = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise StorageError(f"{where} is not JSON: {error}") from error
    if not isinstance(sample, dict):
        raise StorageError(f"{where} is not a JSON object")
    return sample
