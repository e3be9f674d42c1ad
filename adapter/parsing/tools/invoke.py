"""Calls in blocks of XML-like tags, several in one block:

    OPENING
    <invoke name="NAME">
    <parameter name="KEY">VALUE</parameter>
    </invoke>
    CLOSING

The names of the tags are the format's. A parameter may say whether its value is a string (``string="true"``); if not, its type
comes from the tool's schema. A value has no quotes. It runs to the first closing tag of a parameter and is not trimmed, since
templates write it as it is. What may be a string is passed on as it comes. White space between the tags is free, and the newlines
that the template writes before the block belong to it.

Malformed calls are handled as ``hermes`` says: markup that breaks before a call's first parameter is visible text, later it ends
the call with nulls, and what follows up to the next call or the end of the block is not shown. Tolerated: a missing closing tag of
a call before the next one or the end of the block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from adapter.parsing.base import BLANK, ReplyContext, held_suffix
from adapter.parsing.markers import Markers
from adapter.parsing.tools.marked import MarkedParser, Piece, show
from adapter.parsing.tools.parameters import ParameterCall
from adapter.parsing.tools.schema import ToolTypes
from adapter.types import ReplyEvent

MAX_NAME = 256
"""Characters of the name of a tool or a parameter."""

_NAME = re.compile(rf'([^"<>\n]{{1,{MAX_NAME}}})">')
_KEY = re.compile(rf'([^"<>\n]{{1,{MAX_NAME}}})"(?: string="(true|false)")?>')
_STRING = ' string="false">'
_NAME_BEGUN = re.compile(rf'[^"<>\n]{{0,{MAX_NAME}}}(?:"[a-z="\ ]{{0,{len(_STRING)}}})?')


@dataclass(frozen=True, slots=True)
class InvokeTags:
    """How a format writes its tags. ``invoke`` and ``parameter`` go up to the name and its opening quote."""

    opening: str
    closing: str
    invoke: str
    end_invoke: str
    parameter: str
    end_parameter: str

    @property
    def block(self) -> tuple[str, str]:
        return (self.opening, self.closing)

    def in_looks(self, markers: Markers) -> InvokeTags:
        """The tags as they look in a parser's input."""
        tags = (self.opening, self.closing, self.invoke, self.end_invoke, self.parameter, self.end_parameter)
        return InvokeTags(*map(markers.look, tags))


class InvokeBlock:
    """What stands between the outer tags. ``opening``: the text before it that is visible if there is no call."""

    def __init__(self, opening: str, types: ToolTypes, tags: InvokeTags, markers: Markers) -> None:
        self.ill_formed = False
        self.has_call = False
        """A call has been passed on."""
        self._types = types
        self._tags = tags
        self._spelled = markers.spelled
        self._call: ParameterCall | None = None
        self._pending = [opening]
        """What has been read since the last call."""
        self._held = ""
        """What may be the beginning of a tag or a name."""
        self._has_ended = False
        """A call has just ended: what was read last belongs to it."""
        self._passed = 0
        """Characters of what was read last that have been shown, or are not to be."""
        self._step: Callable[[str, list[ReplyEvent]], str] = self._between

    @property
    def in_value(self) -> bool:
        """The next character belongs to a value."""
        return self._step == self._value

    def feed(self, text: str) -> list[ReplyEvent]:
        events: list[ReplyEvent] = []
        rest, self._held = self._held + text, ""
        while rest:
            before = rest
            rest = self._step(rest, events)
            self._note(before[self._passed : len(before) - len(rest) - len(self._held)])
            self._passed = 0
        return events

    def end(self, is_closed: bool) -> list[ReplyEvent]:
        """No more text comes. What is visible of it is the last event."""
        events: list[ReplyEvent] = []
        if self._call is not None and self._step == self._body and is_closed:
            self._end_call(events)
        elif self._call is not None:
            self._break(events)
        elif self._step != self._skip:
            self.ill_formed = self.ill_formed or self._step == self._tool_name
            literal = "".join(self._pending) + self._held
            show(literal if literal.strip(BLANK) else "", events)
        return events

    def _note(self, taken: str) -> None:
        if self._has_ended or (self._call is not None and self._call.started):
            self._has_ended = False
            self.has_call = True
            self._pending.clear()
        else:
            self._pending.append(taken)

    # A step takes text from the front, adds events, and gives back what is left: "" when that is nothing or the rest is held.

    def _between(self, text: str, events: list[ReplyEvent]) -> str:
        tag, rest = self._tag(text, (self._tags.invoke,), events)
        if tag:
            self._step = self._tool_name
        return rest

    def _body(self, text: str, events: list[ReplyEvent]) -> str:
        tag, rest = self._tag(text, (self._tags.parameter, self._tags.end_invoke, self._tags.invoke), events)
        if tag == self._tags.parameter:
            self._step = self._key
        elif tag == self._tags.end_invoke:
            self._end_call(events)
            self._has_ended = True
        elif tag == self._tags.invoke:
            self._end_call(events)
            self._step = self._tool_name
        return rest

    def _tag(self, text: str, tags: Sequence[str], events: list[ReplyEvent]) -> tuple[str, str]:
        """The tag that comes next and what follows it; no tag if that is not known yet, or if there is none."""
        word = text.lstrip(BLANK)
        for tag in tags:
            if word.startswith(tag):
                return tag, word.removeprefix(tag)
        if any(tag.startswith(word) for tag in tags):
            self._held = word
            return "", ""
        return "", self._broken(text, events)

    def _tool_name(self, text: str, events: list[ReplyEvent]) -> str:
        match = _NAME.match(text)
        if match is None:
            return self._name_begun(text, events)
        self._call = ParameterCall(self._spelled(match[1]), self._types)
        self._step = self._body
        return text[match.end() :]

    def _key(self, text: str, events: list[ReplyEvent]) -> str:
        assert self._call is not None
        match = _KEY.match(text)
        if match is None:
            return self._name_begun(text, events)
        events += self._call.begin(self._spelled(match[1]), None if match[2] is None else match[2] == "true")
        self._step = self._value
        return text[match.end() :]

    def _name_begun(self, text: str, events: list[ReplyEvent]) -> str:
        if _NAME_BEGUN.fullmatch(text) is None:
            return self._broken(text, events)
        self._held = text
        return ""

    def _value(self, text: str, events: list[ReplyEvent]) -> str:
        assert self._call is not None
        value, tag, rest = text.partition(self._tags.end_parameter)
        if not tag:
            held = held_suffix(text, self._tags.end_parameter)
            value, self._held = text[: len(text) - held], text[len(text) - held :]
        events += self._call.add(self._spelled(value))
        if tag:
            events += self._call.close()
            self._step = self._body
        return rest

    def _skip(self, text: str, events: list[ReplyEvent]) -> str:
        """Behind the point where a call broke: not shown."""
        return self._to_invoke(text, [])

    def _literal(self, text: str, events: list[ReplyEvent]) -> str:
        """Behind what was no call."""
        return self._to_invoke(text, events)

    def _to_invoke(self, text: str, events: list[ReplyEvent]) -> str:
        before, tag, rest = text.partition(self._tags.invoke)
        if tag:
            self._step = self._tool_name
        else:
            held = held_suffix(text, self._tags.invoke)
            before, self._held = text[: len(text) - held], text[len(text) - held :]
        show(before, events)
        self._passed = len(before)
        return rest

    def _broken(self, text: str, events: list[ReplyEvent]) -> str:
        self._break(events)
        return text

    def _break(self, events: list[ReplyEvent]) -> None:
        """A call ends where it broke; what was none is visible text."""
        self.ill_formed = self.ill_formed or self._step != self._between
        if self._call is not None and self._call.started:
            events += self._call.break_off()
            self.has_call = True
            self._step = self._skip
        else:
            show("".join(self._pending) + self._held, events)
            self._step = self._literal
        self._call = None
        self._held = ""
        self._pending.clear()

    def _end_call(self, events: list[ReplyEvent]) -> None:
        assert self._call is not None
        events += self._call.end()
        self.ill_formed = self.ill_formed or self._call.ill_formed
        self._call = None
        self.has_call = True
        self._pending.clear()
        self._step = self._between


class InvokeCalls(MarkedParser):
    """See the module."""

    def __init__(self, context: ReplyContext, tags: InvokeTags, lead: int) -> None:
        """``lead``: newlines that the template writes before a block."""
        super().__init__(context.markers, tags.block)
        self._lead = lead
        self._markers = context.markers
        self._tags = tags
        self._looks = tags.in_looks(context.markers)
        self._types = ToolTypes.of(context.tools)
        self._block: InvokeBlock | None = None
        self._space: list[str] = []
        """Newlines that belong to the block, if one follows; behind a block all white space."""
        self._is_behind = False

    def _take(self, piece: Piece, events: list[ReplyEvent]) -> None:
        block = self._block
        if block is not None and (not piece.marker or (block.in_value and not piece.is_token)):
            events += block.feed(piece.text)
        elif block is not None:
            self._close(block, piece, events)
        elif piece.marker == self._tags.opening:
            self._block = self._new_block(piece)
            self._space.clear()
        else:
            self._text(piece.text, events)

    def _end(self, events: list[ReplyEvent]) -> None:
        if self._block is not None:
            events += self._block.end(is_closed=False)
            self.ill_formed = self.ill_formed or self._block.ill_formed
        elif not self._is_behind:
            show("".join(self._space), events)

    def _text(self, text: str, events: list[ReplyEvent]) -> None:
        if self._is_behind and not text.strip(BLANK):
            self._space.append(text)
            return
        self._is_behind = False
        text = "".join(self._space) + text
        newlines = min(self._lead, len(text) - len(text.rstrip("\n")))
        show(text[: len(text) - newlines], events)
        self._space = [text[len(text) - newlines :]]

    def _new_block(self, piece: Piece) -> InvokeBlock:
        opening = "".join(self._space) + piece.text
        return InvokeBlock(opening, self._types, self._looks, self._markers)

    def _close(self, block: InvokeBlock, piece: Piece, events: list[ReplyEvent]) -> None:
        events += block.end(is_closed=True)
        self.ill_formed = self.ill_formed or block.ill_formed
        self._block = None
        self._is_behind = block.has_call
        if piece.marker == self._tags.opening:
            self._take(piece, events)
        elif not block.has_call:
            show(piece.text, events)
