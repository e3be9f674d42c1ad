"""Samples as one tree in which each distinct token stands once, and back. Pure.

Samples of a session share long beginnings: leaves share their history, forks repeat it. The packed tree holds it once,
so that a trainer with tree attention computes it once.

    pack(rows) -> tree        unpack(tree) -> rows, equal to what was packed

Two samples share a token if their ids agree up to and including it, unless two turns sampled it: then each keeps a
token of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapter.trajectory.packed_rows import FlatRow, RowError, read_row
from adapter.trajectory.packed_tree import NONE, PackedTree, unpack
from engine.types import Ids

__all__ = ["PackedTree", "RowError", "pack", "unpack"]


def pack(rows: Iterable[Mapping[str, Any]]) -> PackedTree:
    """The tree of samples as ``Sample.to_dict`` gives them. Raises: RowError, if one contradicts itself."""
    packer = _Packer()
    for index, row in enumerate(rows):
        try:
            packer.add(read_row(row))
        except RowError as error:
            raise RowError(f"sample {index}: {error}") from error
    return packer.tree()


@dataclass(slots=True, eq=False)
class _Chunk:
    """Tokens ``[start, start + size)`` of the tree, each the parent of the next; the first has ``depth`` before it."""

    start: int
    size: int
    depth: int
    branches: list[tuple[int, _Chunk]] = field(default_factory=list)
    """``(n, chunk)``: the chunk goes on after the first n tokens of this one."""


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """``count`` tokens of ``chunk``, after those of ``before``."""

    chunk: _Chunk
    count: int
    before: _Step | None

    @property
    def depth(self) -> int:
        return self.chunk.depth + self.count

    @property
    def last(self) -> int:
        """Index of the last token."""
        return self.chunk.start + self.count - 1

    def cut(self, count: int) -> _Step:
        """The same way, leaving the chunk after ``count`` tokens."""
        return self if count == self.count else _Step(self.chunk, count, self.before)

    def path(self) -> NDArray[np.int64]:
        """Indexes of all tokens up to here."""
        parts: list[NDArray[np.int64]] = []
        step: _Step | None = self
        while step is not None:
            parts.append(np.arange(step.chunk.start, step.last + 1))
            step = step.before
        path: NDArray[np.int64] = np.concatenate(parts[::-1])
        return path


class _Packer:
    """The tree as it grows: ``_held`` are the tokens so far, and who they are for."""

    def __init__(self) -> None:
        self._held = FlatRow.empty()
        self._owner = np.empty(0, np.int32)
        self._parents: list[NDArray[Any]] = []
        self._positions: list[NDArray[Any]] = []
        self._size = 0
        self._roots: list[_Chunk] = []
        self._leaves: list[dict[str, Any]] = []

    def add(self, row: FlatRow) -> None:
        leaf = len(self._leaves)
        shared = self._deepest(row)
        depth = 0 if shared is None else shared.depth
        if shared is not None:
            self._take(shared.path(), row, leaf)
        last = NONE if shared is None else shared.last
        if depth < row.size:
            self._grow(row, depth, shared, leaf)
            last = self._size - 1
        self._leaves.append({**row.rest, "last_token": last})

    def _deepest(self, row: FlatRow) -> _Step | None:
        """The longest shared beginning. Where equal outputs were sampled twice, several branches may qualify."""
        best: _Step | None = None
        pending: list[tuple[_Chunk, _Step | None]] = [(chunk, None) for chunk in self._roots]
        while pending:
            chunk, before = pending.pop()
            count = self._shared(chunk, row)
            if not count:
                continue
            step = _Step(chunk, count, before)
            if best is None or step.depth > best.depth:
                best = step
            pending += [(branch, step.cut(n)) for n, branch in chunk.branches if n <= count]
        return best

    def _shared(self, chunk: _Chunk, row: FlatRow) -> int:
        """How many tokens from the start of ``chunk`` the row can share at that depth."""
        held, depth = self._held, chunk.depth
        count = min(chunk.size, row.size - depth)
        if count <= 0 or held.tokens[chunk.start] != row.tokens[depth]:
            return 0
        mine, its = slice(chunk.start, chunk.start + count), slice(depth, depth + count)
        apart = held.tokens[mine] != row.tokens[its]
        if depth + count > row.prompt_length:
            apart |= row.trained[its] & (self._owner[mine] != NONE)
            apart |= (held.turns[mine] != row.turns[its]) & (held.turns[mine] != NONE) & (row.turns[its] != NONE)
        first = int(apart.argmax())
        return first if apart[first] else count

    def _take(self, path: NDArray[np.int64], row: FlatRow, leaf: int) -> None:
        """Let ``leaf`` have the tokens at ``path``; what it trains and what only it knows is written down."""
        held, part = self._held, row.part(0, path.size)
        known = part.trained | ((held.turns[path] == NONE) & (part.turns != NONE))
        held.turns[path[known]] = part.turns[known]
        held.versions[path[known]] = part.versions[known]
        trained = path[part.trained]
        self._owner[trained] = leaf
        held.trained[trained] = True
        held.log_probs[trained] = part.log_probs[part.trained]

    def _grow(self, row: FlatRow, depth: int, after: _Step | None, leaf: int) -> None:
        """Append what is new of ``row``, from ``depth`` on, as a chunk."""
        new = row.part(depth, row.size)
        chunk = _Chunk(self._size, new.size, depth)
        parents = np.arange(chunk.start - 1, chunk.start + chunk.size - 1)
        if after is None:
            self._roots.append(chunk)
            parents[0] = NONE
        else:
            after.chunk.branches.append((after.count, chunk))
            parents[0] = after.last
        self._parents.append(parents)
        self._positions.append(np.arange(depth, row.size))
        self._append(new, np.where(new.trained, leaf, NONE))

    def _append(self, new: FlatRow, owner: NDArray[Any]) -> None:
        end = self._size + new.size
        if end > self._owner.size:
            room = max(end, 2 * self._owner.size)
            self._held = self._held.resized(room)
            self._owner = np.concatenate([self._owner, np.empty(room - self._owner.size, np.int32)])
        self._held.write(self._size, new)
        self._owner[self._size : end] = owner
        self._size = end

    def tree(self) -> PackedTree:
        held = self._held.part(0, self._size).copy()
        return PackedTree(
            tokens=held.tokens,
            parent=_joined(self._parents),
            position_ids=_joined(self._positions),
            loss_mask=held.trained.astype(np.uint8),
            log_probs=held.log_probs,
            weight_versions=held.versions,
            owner=self._owner[: self._size].copy(),
            leaves=tuple(self._leaves),
        )


def _joined(arrays: Iterable[NDArray[Any]]) -> Ids:
    joined: Ids = np.concatenate([np.empty(0, np.int32), *arrays]).astype(np.int32)
    return joined
