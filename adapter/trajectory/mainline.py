"""The main line of a session: the conversation that its agent's own loop has had, without side calls and abandoned branches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from adapter.trajectory.node import Node
from adapter.types import LabelKind


def main_line(chains: Iterable[tuple[Node, ...]]) -> tuple[Node, ...]:
    """The nodes down to the main loop's latest turn; of any loop's, if the main loop has had none. Empty without turns.

    A reply that goes on from a beginning of the client's holds that beginning, so the beginning is left out.
    """
    best: tuple[Node, ...] = ()
    rank = (False, 0)
    for chain in chains:
        for end, node in enumerate(chain, start=1):
            turn = node.generation
            if turn is not None:
                is_main = turn.label is None or turn.label.kind is LabelKind.MAIN
                if (is_main, turn.turn_index) > rank:
                    rank, best = (is_main, turn.turn_index), chain[:end]
    return tuple(_without_beginnings(best))


def _without_beginnings(chain: tuple[Node, ...]) -> Iterator[Node]:
    for place, node in enumerate(chain, start=1):
        if place == len(chain) or not chain[place].continues:
            yield node
