"""Packed trees as files.

``.npz``    the arrays of ``PackedTree`` by name; ``leaves`` and ``about`` are JSON as uint8 arrays; nothing is pickled
``.json``   ``PackedTree.to_dict()`` with ``about`` beside it

``about`` holds the session's name, its turn count and the export's ledger.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from adapter.storage.errors import StorageError
from adapter.trajectory.packed_tree import ARRAYS, FORMAT
from adapter.trajectory.packing import PackedTree, RowError

NPZ = ".npz"


def write_packed(tree: PackedTree, about: Mapping[str, Any], file: BinaryIO, suffix: str) -> None:
    """As ``.npz`` if that is the suffix, else as JSON."""
    if suffix != NPZ:
        file.write(orjson.dumps({**tree.to_dict(), "about": about}))
        return
    arrays = {name: getattr(tree, name) for name in ARRAYS}
    np.savez_compressed(
        file, format=np.array(FORMAT), leaves=_bytes(list(tree.leaves)), about=_bytes(dict(about)), **arrays
    )


def read_packed(path: Path) -> PackedTree:
    """Raises: StorageError, OSError."""
    try:
        return PackedTree.from_dict(_read_npz(path) if path.suffix == NPZ else orjson.loads(path.read_bytes()))
    except (RowError, ValueError, KeyError, EOFError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise StorageError(f"{path} is not a packed tree: {error}") from error


def _read_npz(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in ARRAYS}
        leaves = orjson.loads(archive["leaves"].tobytes())
        return {"format": str(archive["format"]), **arrays, "leaves": leaves}


def _bytes(document: Any) -> NDArray[np.uint8]:
    return np.frombuffer(orjson.dumps(document), np.uint8)
