"""The leaves of a session that are exported: chains of generated turns, and what is said of each as a whole. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from adapter.trajectory.filters import ExportFilters
from adapter.trajectory.generation import Generation
from adapter.trajectory.node import Node


@dataclass(frozen=True, slots=True)
class Leaf:
    """One chain of generated turns, oldest first. ``index`` is the last turn of the tree's leaf, exported or not."""

    index: int
    turns: tuple[Generation, ...]
    truncated: bool
    """The last turn ended at the token limit."""
    use_tool: bool
    """A turn called a tool."""
    ill_formed: bool
    """A turn's tool call was malformed."""

    @property
    def flags(self) -> dict[str, bool]:
        """For the metadata of each of the leaf's samples."""
        return {"truncated": self.truncated, "use_tool": self.use_tool, "ill_formed": self.ill_formed}


def leaf_indexes(chains: Iterable[Sequence[Node]]) -> frozenset[int]:
    """The names of all leaves, a leaf's name being the index of its last turn."""
    found = (_generated(chain) for chain in chains)
    return frozenset(nodes[-1][1].turn_index for nodes in found if nodes)


def exported_leaves(chains: Iterable[Sequence[Node]], filters: ExportFilters) -> list[Leaf]:
    """The leaves, in the order of ``chains``, without turns at their ends that the filters leave out by label.

    A chain that is then part of another one, or equal to an earlier one, is a leaf no longer.
    """
    shortened = [(nodes, _without_dropped_end(nodes, filters)) for nodes in map(_generated, chains) if nodes]
    inside = {turn.turn_index for _, kept in shortened for _, turn in kept[:-1]}
    leaves: list[Leaf] = []
    for nodes, kept in shortened:
        if kept and kept[-1][1].turn_index not in inside:
            inside.add(kept[-1][1].turn_index)
            leaves.append(_leaf(nodes[-1][1].turn_index, kept))
    return leaves


def _generated(chain: Sequence[Node]) -> list[tuple[Node, Generation]]:
    return [(node, node.generation) for node in chain if node.generation is not None]


def _without_dropped_end(nodes: list[tuple[Node, Generation]], filters: ExportFilters) -> list[tuple[Node, Generation]]:
    end = len(nodes)
    while end and filters.drops_label_of(nodes[end - 1][1]):
        end -= 1
    return nodes[:end]


def _leaf(index: int, nodes: Sequence[tuple[Node, Generation]]) -> Leaf:
    return Leaf(
        index=index,
        turns=tuple(turn for _, turn in nodes),
        truncated=nodes[-1][1].finish_reason == "length",
        use_tool=any(bool((node.message or {}).get("tool_calls")) for node, _ in nodes),
        ill_formed=any(turn.ill_formed for _, turn in nodes),
    )
