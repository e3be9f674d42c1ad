"""Calls that a model makes without having closed its reasoning.

Models of most families do that now and then (vLLM, pull request 35687: Qwen3.5; 33646: Kimi K2). They also draft calls in their
thoughts and make them afterwards, and a draft that was run would be run twice (PrimeIntellect renderers, pull request 80). What
follows tells them apart: calls that end the reply are calls, calls that something follows are thoughts. So the text is held back
from a token that opens a call inside the reasoning until that is known. White space and the closing tag of the reasoning may follow
calls; they have to be well formed and of tools that were offered, else they are thoughts too.

This is for vocabularies in which the tags are tokens, or have one in them. Where they are text, all of the reasoning is reasoning.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from adapter.parsing.base import BLANK, ReplyContext, ToolParser
from adapter.parsing.markers import Markers
from adapter.parsing.tools.marked import Cutter, Piece
from adapter.types import ReplyEvent, TextDelta, ToolCallEnd, ToolCallStart


class _At(Enum):
    THOUGHT = auto()
    """Nothing is held."""
    CALL = auto()
    AFTER_CALL = auto()
    AFTER_REASONING = auto()


class UnclosedReasoning:
    """Holds back what may be such calls. ``opening``, ``closing``: tags of a call; ``end``: the closing tag of the reasoning.

    Cut the text and ``take`` the pieces.
    """

    def __init__(self, markers: Markers, opening: str, closing: str, end: str) -> None:
        self._cutter = Cutter(markers, (opening, closing, end))
        self._opening = opening
        self._closing = closing
        self._end = end
        self._at = _At.THOUGHT
        self._held: list[str] = []
        self._calls = ""
        """The held text up to the closing tag of the reasoning, once that is there."""

    @property
    def holding(self) -> bool:
        return self._at is not _At.THOUGHT

    @property
    def past_reasoning(self) -> bool:
        return self._at is _At.AFTER_REASONING

    def cut(self, text: str) -> Sequence[Piece]:
        """What may be the beginning of a tag is held back."""
        return self._cutter.feed(text)

    def rest(self) -> str:
        """What ``cut`` held back: no more is to be cut."""
        return "".join(piece.text for piece in self._cutter.finish())

    def take(self, piece: Piece, inside: bool) -> str:
        """The text that isn't held back any more. ``inside``: the piece stands in the reasoning."""
        if self._at is _At.THOUGHT:
            if piece.marker != self._opening or not inside:
                return piece.text
            self._at = _At.CALL
        elif self._is_thought(piece):
            return self.release() + piece.text
        self._held.append(piece.text)
        return ""

    def release(self) -> str:
        """What was held was a thought."""
        self._at = _At.THOUGHT
        held = "".join(self._held)
        self._held.clear()
        return held

    def calls(self) -> str:
        """The text of the calls that are held, as far as the tags tell; the reply is over."""
        match self._at:
            case _At.AFTER_CALL:
                return "".join(self._held)
            case _At.AFTER_REASONING:
                return self._calls
            case _:
                return ""

    def _is_thought(self, piece: Piece) -> bool:
        """Whether ``piece`` says so. Moves on, if not."""
        if self._at is _At.CALL:
            if piece.marker == self._closing:
                self._at = _At.AFTER_CALL
            return piece.marker == self._end
        if not piece.text.strip(BLANK):
            return False
        if self._at is _At.AFTER_REASONING:
            return True
        if piece.marker == self._opening:
            self._at = _At.CALL
        elif piece.marker == self._end:
            self._at = _At.AFTER_REASONING
            self._calls = "".join(self._held)
        return piece.marker not in (self._opening, self._end)


def whole_calls(parser: ToolParser, text: str, context: ReplyContext) -> list[ReplyEvent]:
    """The events of ``text``, if it is nothing but well-formed calls of offered tools; else none. ``parser`` is new."""
    events: Sequence[ReplyEvent] = [*parser.feed(text), *parser.finish()]
    offered = {tool["function"]["name"] for tool in context.tools}
    names = {event.name for event in events if isinstance(event, ToolCallStart)}
    prose = any(isinstance(event, TextDelta) and event.text.strip(BLANK) for event in events)
    if not names or not names <= offered or prose or parser.ill_formed:
        return []
    last = max(at for at, event in enumerate(events) if isinstance(event, ToolCallEnd))
    return list(events[: last + 1])
