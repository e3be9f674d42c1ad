"""The frame of parsers whose format is text between markers: it cuts a reply at the markers, a parser takes piece after piece.

A marker that is a token of the vocabulary is one stand-in character and cannot be mistaken. One that is only text may be a literal
inside a string of arguments: ``Piece.is_token`` tells them apart.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from adapter.parsing.base import held_suffix
from adapter.parsing.markers import Markers
from adapter.types import ReplyEvent, TextDelta

PIECE = 256
"""Characters of text in one piece, at most: what is left of a piece is copied step by step, so this bounds the copying."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A marker, or text between markers. Text may hold stand-ins of markers that this format does not read."""

    text: str
    """As it stood in the reply."""
    marker: str = ""
    """The text of the marker that this is; "" for text."""
    is_token: bool = False
    """The marker is one token of the vocabulary."""


class Cutter:
    """Cuts what it is fed at ``texts``, the markers to look for."""

    def __init__(self, markers: Markers, texts: Sequence[str]) -> None:
        looks = {markers.look(text): text for text in texts}
        self._markers = {look: Piece(look, text, is_token=look != text) for look, text in looks.items()}
        self._pattern = re.compile(f"({'|'.join(map(re.escape, sorted(looks, key=len, reverse=True)))})")
        self._spelled = [look for look in looks if len(look) > 1]
        self._held = ""

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are complete; what may be the beginning of a marker is held back."""
        text = self._held + text
        held = held_suffix(text, *self._spelled) if self._spelled else 0
        self._held = text[len(text) - held :]
        return self._cut(text[: len(text) - held])

    def finish(self) -> list[Piece]:
        """What was held back."""
        held, self._held = self._held, ""
        return self._cut(held)

    def _cut(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        for part in self._pattern.split(text):
            marker = self._markers.get(part)
            pieces += _texts(part) if marker is None else [marker]
        return pieces


def _texts(text: str) -> list[Piece]:
    return [Piece(text[at : at + PIECE]) for at in range(0, len(text), PIECE)]


class MarkedParser(ABC):
    """A ``ToolParser`` over pieces."""

    def __init__(self, markers: Markers, texts: Sequence[str]) -> None:
        self.ill_formed = False
        self._cutter = Cutter(markers, texts)

    def feed(self, text: str) -> list[ReplyEvent]:
        events: list[ReplyEvent] = []
        for piece in self._cutter.feed(text):
            self._take(piece, events)
        return events

    def finish(self) -> list[ReplyEvent]:
        events: list[ReplyEvent] = []
        for piece in self._cutter.finish():
            self._take(piece, events)
        self._end(events)
        return events

    @abstractmethod
    def _take(self, piece: Piece, events: list[ReplyEvent]) -> None:
        """Deal with the next piece."""

    @abstractmethod
    def _end(self, events: list[ReplyEvent]) -> None:
        """No more pieces come."""


def show(text: str, events: list[ReplyEvent]) -> None:
    """``text`` is visible."""
    if text:
        events.append(TextDelta(text))
