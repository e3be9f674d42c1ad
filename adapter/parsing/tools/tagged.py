"""Calls that stand between ``<tool_call>`` and ``</tool_call>`` in visible text; what is inside is a block of some format.

Which format is decided by the first character inside. A block that refuses its text was no call: the text, with the tag, is
visible text exactly as it came. The one newline before a call belongs to the call, since chat templates put it there: text that
kept it would be rendered with two and no longer equal what was sampled. So does white space between calls and after the last.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum, auto

from adapter.parsing.base import BLANK, held_suffix
from adapter.parsing.markers import Markers
from adapter.types import ReplyEvent, TextDelta

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
TAGS = (OPEN, CLOSE)
ANY = ""
"""In place of the first character: every other."""
MAX_LEAD = 64
"""White space between the tag and the block, in characters."""
PIECE = 256
"""Characters looked at at a time: what follows a tag is copied, so this bounds the copying."""


class BlockState(Enum):
    RUNNING = auto()
    CLOSED = auto()
    """The call is complete, with its closing tag where it has one; ``rest`` follows it."""
    REFUSED = auto()
    """It is no call: ``literal`` is what the block took of the text, ``rest`` what follows."""


class CallBlock(ABC):
    """What stands behind ``<tool_call>``, closing tag included."""

    def __init__(self, markers: Markers) -> None:
        self.state = BlockState.RUNNING
        self.literal = ""
        self.rest = ""
        self.ill_formed = False
        self._markers = markers
        self._opening = markers.look(OPEN)
        self._closing = markers.look(CLOSE)
        self._tags = re.compile(f"{self._opening}|{self._closing}")
        self._held = ""

    @abstractmethod
    def feed(self, text: str) -> list[ReplyEvent]: ...

    @abstractmethod
    def finish(self) -> list[ReplyEvent]:
        """No more text comes. Leaves the block CLOSED or REFUSED; a call that has started is ended."""

    # Steps of blocks, which take text from the front and give back what is left to deal with: "" when that is nothing or is held.

    def _close(self, rest: str) -> str:
        self.state = BlockState.CLOSED
        self.rest = rest
        return ""

    def _skip(self, text: str) -> str:
        """Behind the point where the call broke: all up to the next tag is left out."""
        tag = self._tags.search(text)
        if tag is None:
            self._held = text[len(text) - held_suffix(text, self._opening, self._closing) :]
            return ""
        return self._close(text[tag.start() :].removeprefix(self._closing))


class TaggedCalls:
    """See the module. ``blocks``: first character inside -> a new block."""

    def __init__(self, markers: Markers, blocks: Mapping[str, Callable[[], CallBlock]]) -> None:
        self.ill_formed = False
        self._tag = markers.look(OPEN)
        self._blocks = blocks
        self._block: CallBlock | None = None
        self._held = ""
        self._opening = ""
        """What the call, if it is one, takes out of the visible text before its block."""
        self._space: list[str] = []
        self._step = self._text

    def feed(self, text: str) -> list[ReplyEvent]:
        events: list[ReplyEvent] = []
        self._read(text, events)
        return events

    def finish(self) -> list[ReplyEvent]:
        events: list[ReplyEvent] = []
        while self._block is not None:
            events += self._block.finish()
            self._read(self._leave(self._block, events), events)
        if self._step == self._opened:
            self._show(self._opening + self._held, events)
        elif self._held:
            self._show("".join(self._space) + self._held, events)
        return events

    def _read(self, text: str, events: list[ReplyEvent]) -> None:
        pieces = _pieces(text)
        while pieces:
            rest, self._held = self._held + pieces.pop(), ""
            while rest:
                if len(rest) > 2 * PIECE:  # a block gave back what it had collected
                    pieces += _pieces(rest)
                    break
                rest = self._step(rest, events)

    # A step takes text from the front, adds events, and gives back what the next step is to deal with: "" when that is nothing or
    # when the rest is held, because only the next character can tell.

    def _text(self, text: str, events: list[ReplyEvent]) -> str:
        before, tag, rest = text.partition(self._tag)
        if not tag:
            kept = len(text) - held_suffix(text, self._tag, "\n" + self._tag)
            self._show(text[:kept], events)
            self._held = text[kept:]
            return ""
        newline = "\n" if before.endswith("\n") else ""
        self._show(before.removesuffix("\n"), events)
        self._open(newline + self._tag)
        return rest

    def _open(self, opening: str) -> None:
        self._opening = opening
        self._step = self._opened

    def _opened(self, text: str, events: list[ReplyEvent]) -> str:
        inside = text.lstrip(BLANK)
        lead = len(text) - len(inside)
        if not inside and lead <= MAX_LEAD:
            self._held = text
            return ""
        new_block = self._blocks.get(inside[:1]) or self._blocks.get(ANY)
        if lead > MAX_LEAD or new_block is None:
            return self._refuse("", text, events)
        self._opening += text[:lead]
        self._block = new_block()
        self._step = self._in_block
        return inside

    def _in_block(self, text: str, events: list[ReplyEvent]) -> str:
        assert self._block is not None
        block = self._block
        events += block.feed(text)
        if block.state is BlockState.RUNNING:
            return ""
        return self._leave(block, events)

    def _leave(self, block: CallBlock, events: list[ReplyEvent]) -> str:
        self._block = None
        self.ill_formed |= block.ill_formed
        if block.state is BlockState.REFUSED:
            return self._refuse(block.literal, block.rest, events)
        self._step = self._after_call
        return block.rest

    def _refuse(self, literal: str, rest: str, events: list[ReplyEvent]) -> str:
        shown = self._opening + literal
        newline = "\n" if shown.endswith("\n") else ""  # it may belong to a call that follows
        self._show(shown.removesuffix("\n"), events)
        self._step = self._text
        return newline + rest

    def _after_call(self, text: str, events: list[ReplyEvent]) -> str:
        word = text.lstrip(BLANK)
        if len(word) < len(text):
            self._space.append(text[: len(text) - len(word)])
        if self._tag.startswith(word) and word != self._tag:
            self._held = word
            return ""
        space = "".join(self._space)
        self._space.clear()
        if word.startswith(self._tag):
            self._open(space + self._tag)
            return word.removeprefix(self._tag)
        self._show(space, events)
        self._step = self._text
        return word

    def _show(self, text: str, events: list[ReplyEvent]) -> None:
        if text:
            events.append(TextDelta(text))


def _pieces(text: str) -> list[str]:
    """``text`` in pieces, the last one first."""
    if 0 < len(text) <= PIECE:
        return [text]
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)][::-1]
