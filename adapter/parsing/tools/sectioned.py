"""Calls between markers in sections, their arguments being JSON:

    SECTION  CALL HEAD ARGUMENTS {...} END_CALL  CALL HEAD ARGUMENTS {...} END_CALL ...  END_SECTION

A call is announced as soon as its arguments begin, whether the tool was offered or not. Malformed calls are handled as ``hermes``
says. Tolerated, since the meaning is plain: a call without a section around it, a missing END_CALL, white space between markers.
"""

from __future__ import annotations

from dataclasses import dataclass

from adapter.parsing.base import BLANK, ReplyContext
from adapter.parsing.tools.marked import MarkedParser, Piece, show
from adapter.parsing.tools.streamed import JsonCall
from adapter.types import ReplyEvent

MAX_HEAD = 512
"""Characters between the markers around the name."""


@dataclass(frozen=True, slots=True)
class SectionMarkers:
    """See the module."""

    section: str
    end_section: str
    call: str
    arguments: str
    end_call: str

    @property
    def all(self) -> tuple[str, ...]:
        return (self.section, self.end_section, self.call, self.arguments, self.end_call)

    @property
    def section_tags(self) -> tuple[str, str]:
        return (self.section, self.end_section)

    @property
    def closers(self) -> tuple[str, str]:
        return (self.end_call, self.end_section)


class SectionedCalls(MarkedParser):
    """See the module."""

    def __init__(self, context: ReplyContext, section: SectionMarkers) -> None:
        super().__init__(context.markers, section.all)
        self._markers = context.markers
        self._section = section
        self._call: JsonCall | None = None
        self._pending: list[str] = []
        """What has been read of a section or a call that may still turn out to be none."""
        self._head = ""
        self._in_section = False
        self._step = self._text

    def _take(self, piece: Piece, events: list[ReplyEvent]) -> None:
        self._step(piece, events)

    def _end(self, events: list[ReplyEvent]) -> None:
        if self._call is not None and self._call.started:
            self._end_call(self._call, events)
        elif self._step == self._between:
            self._leave(events)
        else:
            self._refuse(events)

    def _text(self, piece: Piece, events: list[ReplyEvent]) -> None:
        if piece.marker == self._section.section:
            self._in_section = True
            self._pending.append(piece.text)
            self._step = self._between
        elif piece.marker == self._section.call:
            self._open(piece)
        elif piece.marker == self._section.end_section and self._in_section:
            self._in_section = False
            self._step = self._between
        else:
            show(piece.text, events)

    def _between(self, piece: Piece, events: list[ReplyEvent]) -> None:
        """In a section, outside its calls; or behind it."""
        if piece.marker == self._section.call:
            self._open(piece)
        elif not piece.text.strip(BLANK):
            self._pending.append(piece.text)
        else:
            self._leave(events, to_text=not piece.marker)
            self._text(piece, events)

    def _leave(self, events: list[ReplyEvent], to_text: bool = False) -> None:
        """A section without calls is visible text. So is white space before text; elsewhere it belongs to the calls."""
        pending = "".join(self._pending)
        if pending.strip(BLANK):
            self._in_section = False
            to_text = True
        show(pending if to_text else "", events)
        self._pending.clear()
        self._step = self._text

    def _open(self, piece: Piece) -> None:
        self._pending.append(piece.text)
        self._head = ""
        self._step = self._name

    def _name(self, piece: Piece, events: list[ReplyEvent]) -> None:
        name = self._name_in(self._head.strip(BLANK))
        if piece.marker == self._section.arguments and name:
            self._begin_call(name)
        elif piece.marker or len(self._head) > MAX_HEAD:
            self._refuse(events)
            self._text(piece, events)
            return
        self._head += piece.text
        self._pending.append(piece.text)

    def _name_in(self, head: str) -> str:
        """The tool's name in what stands before the arguments; "" if there is none."""
        return head

    def _begin_call(self, name: str) -> None:
        self._call = JsonCall(self._markers.spelled(name), self._markers)
        self._step = self._arguments

    def _arguments(self, piece: Piece, events: list[ReplyEvent]) -> None:
        assert self._call is not None
        is_end = piece.marker not in ("", self._section.arguments) and (piece.is_token or not self._call.in_string)
        if is_end:
            self._end_call(self._call, events)
            if piece.marker != self._section.end_call:
                self._between(piece, events)
            return
        events += self._call.feed(piece.text)
        if not self._call.started:
            self._pending.append(piece.text)

    def _end_call(self, call: JsonCall, events: list[ReplyEvent]) -> None:
        events += call.end()
        self.ill_formed = self.ill_formed or call.ill_formed
        self._call = None
        self._in_section = True
        self._pending.clear()
        self._step = self._between

    def _refuse(self, events: list[ReplyEvent]) -> None:
        self.ill_formed = self.ill_formed or bool(self._pending)
        self._call = None
        show("".join(self._pending), events)
        self._pending.clear()
        self._step = self._text
