"""The packed form of samples: a tree of tokens, and the way back from it. Pure.

Token ``i`` follows token ``parent[i]``; a sample is the path to the last token of its leaf. A token trains for one leaf
at most, its ``owner``; on other paths it is context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from adapter.trajectory.packed_rows import RowError
from engine.types import Ids, LogProbs

FORMAT = "rollserve-packed-1"
NONE = -1
"""In ``parent``: a first token. In ``owner``: not trained. In ``weight_versions``: not sampled, or not recorded."""

ARRAYS: Mapping[str, Any] = {
    "tokens": np.int32,
    "parent": np.int32,
    "position_ids": np.int32,
    "loss_mask": np.uint8,
    "log_probs": np.float32,
    "weight_versions": np.int32,
    "owner": np.int32,
}


@dataclass(frozen=True, slots=True, eq=False)
class PackedTree:
    """All arrays are one-dimensional, [N] for N distinct tokens; parents stand before their children.

    ``leaves`` are JSON objects in the order of the samples: the sample without its per-token lists, and ``last_token``,
    the index of its last token. Raises: RowError, if the parts contradict one another.
    """

    tokens: Ids
    parent: Ids
    position_ids: Ids
    """Tokens before this one on its path."""
    loss_mask: NDArray[np.uint8]
    """1 where a leaf trains the token."""
    log_probs: LogProbs
    """0.0 where nothing trains."""
    weight_versions: Ids
    owner: Ids
    """The index in ``leaves`` of the leaf that trains the token."""
    leaves: tuple[dict[str, Any], ...]

    def __post_init__(self) -> None:
        size = self.tokens.size
        for name, dtype in ARRAYS.items():
            array = getattr(self, name)
            if array.shape != (size,) or array.dtype != dtype:
                raise RowError(f"{name} is {array.dtype} {array.shape}, not {np.dtype(dtype)} ({size},)")
        order = np.arange(size)
        if ((self.parent < NONE) | (self.parent >= order)).any():
            raise RowError("a parent does not stand before its child")
        if ((self.owner < NONE) | (self.owner >= len(self.leaves))).any():
            raise RowError("an owner is no leaf")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready if the samples were."""
        arrays = {name: getattr(self, name).tolist() for name in ARRAYS}
        return {"format": FORMAT, **arrays, "leaves": list(self.leaves)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """The tree of a document as ``to_dict`` makes it; arrays may be lists or numpy arrays. Raises: RowError."""
        if document.get("format") != FORMAT:
            raise RowError(f"the format is {document.get('format')!r}, not {FORMAT}")
        try:
            arrays = {name: np.asarray(document[name], dtype) for name, dtype in ARRAYS.items()}
            return cls(**arrays, leaves=tuple(document["leaves"]))
        except (KeyError, TypeError, OverflowError) as error:
            raise RowError(f"a part is missing or broken: {error}") from error


def unpack(tree: PackedTree) -> list[dict[str, Any]]:
    """The samples that were packed, in their order. Raises: RowError."""
    runs = _run_starts(tree.parent)
    return [_unpacked(tree, index, leaf, runs) for index, leaf in enumerate(tree.leaves)]


def _run_starts(parent: Ids) -> NDArray[np.int64]:
    """Indexes of tokens that do not simply follow the token before them in the arrays."""
    follows = parent == np.arange(parent.size) - 1
    follows[:1] = False
    starts: NDArray[np.int64] = np.flatnonzero(~follows)
    return starts


def _path(parent: Ids, runs: NDArray[np.int64], last: int) -> NDArray[np.int64]:
    """Indexes of the tokens from a first one to ``last``."""
    parts: list[NDArray[np.int64]] = []
    while last != NONE:
        start = int(runs[np.searchsorted(runs, last, side="right") - 1])
        parts.append(np.arange(start, last + 1))
        last = int(parent[start])
    path: NDArray[np.int64] = np.concatenate(parts[::-1])
    return path


def _unpacked(tree: PackedTree, index: int, leaf: Mapping[str, Any], runs: NDArray[np.int64]) -> dict[str, Any]:
    last, length = leaf.get("last_token"), leaf.get("response_length")
    if type(last) is not int or not 0 <= last < tree.tokens.size:
        raise RowError(f"leaf {index}: last_token is {last!r}, no index of a token")
    path = _path(tree.parent, runs, last)
    if type(length) is not int or not 0 <= length <= path.size:
        raise RowError(f"leaf {index}: response_length is {length!r} on a path of {path.size} tokens")
    response = path[path.size - length :]
    trained = tree.owner[response] == index
    row = {key: value for key, value in leaf.items() if key != "last_token"}
    return row | {
        "tokens": tree.tokens[path].tolist(),
        "loss_mask": trained.astype(np.uint8).tolist(),
        "rollout_log_probs": np.where(trained, tree.log_probs[response], np.float32(0.0)).tolist(),
    }
