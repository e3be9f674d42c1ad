"""The format of Kimi K2:

    <|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>{...}<|tool_call_end|>...
    <|tool_calls_section_end|>

Source: ``docs/tool_call_guidance.md`` and ``chat_template.jinja`` of moonshotai/Kimi-K2-Instruct and Kimi-K2-Thinking (the template
is also in llama.cpp, ``models/templates/Kimi-K2-Thinking.jinja``). Reasoning is ``<think>`` ... ``</think>``.

The markers are tokens, so a call is announced as soon as its arguments begin, whether the tool was offered or not. Malformed calls
are handled as ``hermes`` says. Tolerated, since the meaning is plain: a call without a section around it, a missing
``<|tool_call_end|>``, white space between the markers, a name without ``functions.`` or without an index.
"""

from __future__ import annotations

import re

from adapter.parsing.base import BLANK, ReplyContext
from adapter.parsing.tools.family import ToolFamily
from adapter.parsing.tools.marked import MarkedParser, Piece, show
from adapter.parsing.tools.streamed import JsonCall
from adapter.types import ReplyEvent

SECTION = "<|tool_calls_section_begin|>"
END_SECTION = "<|tool_calls_section_end|>"
CALL = "<|tool_call_begin|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
END_CALL = "<|tool_call_end|>"
MARKERS = (SECTION, END_SECTION, CALL, ARGUMENTS, END_CALL)
NAMESPACE = "functions."
MAX_HEAD = 512
"""Characters between the markers around the name."""

_INDEX = re.compile(r":\d+\Z")


class KimiCalls(MarkedParser):
    """See the module."""

    def __init__(self, context: ReplyContext) -> None:
        super().__init__(context.markers, MARKERS)
        self._context = context
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
        if piece.marker == SECTION:
            self._in_section = True
            self._pending.append(piece.text)
            self._step = self._between
        elif piece.marker == CALL:
            self._open(piece)
        elif piece.marker == END_SECTION and self._in_section:
            self._in_section = False
            self._step = self._between
        else:
            show(piece.text, events)

    def _between(self, piece: Piece, events: list[ReplyEvent]) -> None:
        """In a section, outside its calls; or behind it."""
        if piece.marker == CALL:
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
        name = _INDEX.sub("", self._head.strip(BLANK)).removeprefix(NAMESPACE)
        if piece.marker == ARGUMENTS and name:
            self._call = JsonCall(self._context.markers.spelled(name), self._context.markers)
            self._step = self._arguments
        elif piece.marker or len(self._head) > MAX_HEAD:
            self._refuse(events)
            self._text(piece, events)
            return
        self._head += piece.text
        self._pending.append(piece.text)

    def _arguments(self, piece: Piece, events: list[ReplyEvent]) -> None:
        assert self._call is not None
        is_end = piece.marker not in ("", ARGUMENTS) and (piece.is_token or not self._call.in_string)
        if is_end:
            self._end_call(self._call, events)
            if piece.marker != END_CALL:
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


KIMI = ToolFamily(KimiCalls, MARKERS, closers=(END_CALL, END_SECTION))
