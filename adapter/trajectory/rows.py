"""From the turns of one chain to rows of tokens, the baseline's rules.

A row is one sample in the making: a leading prompt, then segments. Turns join it oldest first. Whatever happened, a
row always holds exactly the ids of its newest turn, so how the next turn relates to it can be read off that turn's
``base_len``.

A generated turn trains in the first row that reaches it. Chains that share it re-emit it as context, so nothing
trains twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from adapter.trajectory.generation import Generation
from adapter.trajectory.ledger import DropReason, Fates
from engine.types import Ids


class Continuation(StrEnum):
    """How a turn relates to the row of the turn before it."""

    CLEAN = "clean"
    """Its prompt extends the row: what is new in the prompt is appended as context."""
    REALIGN = "realign"
    """Its prompt departs from the row within the newest output, and its own output is short: the prompt's version
    takes the place of that output, which stops training as a whole."""
    FORK = "fork"
    """Anything else: the row is closed and another one begins with the whole prompt."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens that follow a row's leading prompt, int32."""

    ids: Ids
    turn: Generation | None = None
    """The turn whose whole output this is; None for context that came with a prompt."""
    trained: bool = False


@dataclass(slots=True)
class Row:
    """One sample in the making. ``prompt`` is the leading prompt, int32; the last segment is a turn's output."""

    prompt: Ids
    segments: list[Segment]

    @property
    def model(self) -> str:
        """The served name of the weights that sampled the end of the row; empty where that was not recorded."""
        last = self.segments[-1].turn
        return "" if last is None else last.model

    def trained_turns(self) -> list[Generation]:
        """The turns that train here."""
        return [segment.turn for segment in self.segments if segment.turn is not None and segment.trained]


def continuation(previous: Generation, turn: Generation, fork_threshold_tokens: int) -> Continuation:
    """How ``turn``, which comes after ``previous`` on its path, goes on from it."""
    if turn.context_after(previous) is not None:
        return Continuation.CLEAN
    if turn.base_len >= previous.prompt_len and turn.output.size < fork_threshold_tokens:
        return Continuation.REALIGN
    return Continuation.FORK


def split_into_rows(
    turns: Iterable[Generation], fork_threshold_tokens: int, claimed: set[int], fates: Fates
) -> list[Row]:
    """The rows of one chain of turns, oldest first.

    ``claimed`` holds the indexes of turns that train already and is added to; what stops training is dropped in
    ``fates``.
    """
    rows: list[Row] = []
    previous: Generation | None = None
    for turn in turns:
        how = Continuation.FORK if previous is None else continuation(previous, turn, fork_threshold_tokens)
        context = None if previous is None else turn.context_after(previous)
        output = Segment(turn.output, turn, trained=turn.turn_index not in claimed)
        claimed.add(turn.turn_index)
        if how is Continuation.FORK:
            rows.append(Row(turn.prompt_ids(), [output]))
        elif how is Continuation.CLEAN:
            rows[-1].segments += [*map(Segment, context or ()), output]
        else:
            rows[-1].segments += [_realigned(rows[-1].segments.pop(), turn, fates), output]
        previous = turn
    return rows


def _realigned(newest: Segment, turn: Generation, fates: Fates) -> Segment:
    """What ``turn``'s prompt has from the start of the ``newest`` output on."""
    assert newest.turn is turn.base is not None
    if newest.trained:
        fates.drop(turn.base, DropReason.REALIGNED)
    shared = newest.ids[: turn.base_len - turn.base.prompt_len]
    return Segment(np.concatenate([shared, turn.given]))
