"""The formats of Google's models that were trained to call functions.

    <|tool_call>call:NAME{key:<|"|>text<|"|>,n:3}<tool_call|>              Gemma 4
    <start_function_call>call:NAME{key:<escape>text<escape>}<end_function_call>    FunctionGemma

Reasoning of Gemma 4 stands in a channel: ``<|channel>thought``, newline, reasoning, ``<channel|>``; there may be one before each
call. The prompt may have opened it. Behind its calls a model writes ``<|tool_response>`` (``<start_function_response>``), which
is one of its end tokens.

Source: Google's Gemma documentation, "Gemma 4 Prompt Formatting" and "FunctionGemma formatting and best practices"; the chat
template of Gemma 4 (also in llama.cpp, ``models/templates/gemma4.jinja``). Gemma 3 has no format of its own: see ``llama``.

The markers are tokens, so a call is announced as soon as its arguments begin, whether the tool was offered or not. Malformed
calls are handled as ``hermes`` says; after the point where a call broke nothing is shown up to its closing marker.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from adapter.parsing.base import BLANK, ReplyContext
from adapter.parsing.tools.family import ToolFamily, WholeReplyFamily
from adapter.parsing.tools.gemma_arguments import GemmaArguments
from adapter.parsing.tools.marked import MarkedParser, Piece, show
from adapter.parsing.tools.streamed import StreamedCall
from adapter.types import ReasoningDelta, ReplyEvent

THOUGHT = "thought"
"""The name of the channel that holds the reasoning."""
MAX_HEAD = 512
"""Characters of ``call:NAME``."""

_HEAD = re.compile(rf"[{BLANK}]*call:[{BLANK}]*([^{{}}{BLANK}]+)[{BLANK}]*")


@dataclass(frozen=True, slots=True)
class GemmaMarkers:
    """What one of the formats is written with. Without ``channel`` it has no reasoning."""

    call: str
    end_call: str
    quote: str
    response: str
    channel: str = ""
    end_channel: str = ""

    @property
    def all(self) -> tuple[str, ...]:
        named = (self.call, self.end_call, self.quote, self.response, self.channel, self.end_channel)
        return tuple(filter(None, named))


GEMMA4_MARKERS = GemmaMarkers("<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_response>", "<|channel>", "<channel|>")
FUNCTION_MARKERS = GemmaMarkers("<start_function_call>", "<end_function_call>", "<escape>", "<start_function_response>")


class GemmaReply(MarkedParser):
    """See the module; a ``ReplyParser``."""

    def __init__(self, context: ReplyContext, names: GemmaMarkers) -> None:
        super().__init__(context.markers, names.all)
        self._markers = context.markers
        self._names = names
        self._call = StreamedCall()
        self._arguments: GemmaArguments | None = None
        self._head = ""
        self._pending: list[str] = []
        """What has been read of a call that may still turn out to be none; white space behind a call."""
        self._step = self._text
        self._read_prompt(context.prompt_tail)

    @property
    def inside(self) -> bool:
        return self._step in (self._channel_name, self._reasoning)

    @property
    def settled(self) -> bool:
        return not self._names.channel

    def _read_prompt(self, tail: str) -> None:
        """It may end inside the reasoning."""
        look = self._markers.look
        _, opened, behind = tail.rpartition(look(self._names.channel)) if self._names.channel else ("", "", "")
        if opened and look(self._names.end_channel) not in behind:
            self._head = behind
            self._step = self._reasoning if "\n" in behind else self._channel_name

    def _take(self, piece: Piece, events: list[ReplyEvent]) -> None:
        self._step(piece, events)

    def _end(self, events: list[ReplyEvent]) -> None:
        if self._step == self._channel_name:
            self._think("" if THOUGHT.startswith(self._head.strip(BLANK)) else self._head, events)
        elif self._step in (self._opened, self._in_arguments):
            self._break(events)

    # A step takes one piece.

    def _text(self, piece: Piece, events: list[ReplyEvent]) -> None:
        if piece.marker == self._names.call:
            self._pending.append(piece.text)
            self._head = ""
            self._step = self._opened
        elif piece.marker == self._names.channel and piece.marker:
            self._head = ""
            self._step = self._channel_name
        else:
            show(piece.text, events)

    def _channel_name(self, piece: Piece, events: list[ReplyEvent]) -> None:
        """The line with the channel's name is no reasoning."""
        self._step = self._reasoning
        if piece.marker:
            self._think("" if self._head.strip(BLANK) == THOUGHT else self._head, events)
            self._reasoning(piece, events)
            return
        self._head += piece.text
        name, newline, rest = self._head.partition("\n")
        if newline and name.strip(BLANK) == THOUGHT:
            self._think(rest, events)
        elif newline or not THOUGHT.startswith(name.strip(BLANK)):
            self._think(self._head, events)
        else:
            self._step = self._channel_name

    def _reasoning(self, piece: Piece, events: list[ReplyEvent]) -> None:
        if piece.marker == self._names.end_channel:
            self._step = self._text
        else:
            self._think(piece.text, events)

    def _think(self, text: str, events: list[ReplyEvent]) -> None:
        if text:
            events.append(ReasoningDelta(text))

    def _opened(self, piece: Piece, events: list[ReplyEvent]) -> None:
        head, brace, arguments = piece.text.partition("{")
        self._head += head
        match = _HEAD.fullmatch(self._head)
        if piece.marker or len(self._head) > MAX_HEAD or (brace and match is None):
            self._break(events)
            self._text(piece, events)
            return
        self._pending.append(head + brace)
        if brace and match is not None:
            self._call = StreamedCall(self._markers.spelled(match[1]))
            self._arguments = GemmaArguments()
            self._step = self._in_arguments
            self._in_arguments(Piece(arguments), events)

    def _in_arguments(self, piece: Piece, events: list[ReplyEvent]) -> None:
        assert self._arguments is not None
        rest = ""
        if piece.marker == self._names.quote:
            fragment = self._arguments.quote()
        elif self._ends(piece):
            self._break(events)
            self._behind(piece, events)
            return
        else:
            fragment, rest = self._arguments.feed(self._markers.spelled(piece.text))
        events += self._call.add(fragment)
        if not self._call.started:
            self._pending.append(piece.text)
        if self._arguments.failed:
            self._fail(events)
        elif self._arguments.done:
            self._close(rest, events)

    def _ends(self, piece: Piece) -> bool:
        """A marker that may not stand in arguments; in a string it may be literal."""
        assert self._arguments is not None
        return bool(piece.marker) and (piece.is_token or not self._arguments.in_string)

    def _close(self, rest: str, events: list[ReplyEvent]) -> None:
        events += self._call.end()
        self._arguments = None
        self._pending.clear()
        self._step = self._to_end
        if rest:
            self._to_end(Piece(rest), events)

    def _fail(self, events: list[ReplyEvent]) -> None:
        self._break(events)
        if self._step != self._text:
            self._step = self._to_end

    def _break(self, events: list[ReplyEvent]) -> None:
        """The call ends where it broke; one that had not begun is visible text."""
        self.ill_formed = True
        if self._arguments is not None and self._call.started:
            events += [*self._call.add(self._arguments.break_off()), *self._call.end()]
            self._step = self._behind
        else:
            show("".join(self._pending), events)
            self._step = self._text
        self._arguments = None
        self._pending.clear()

    def _to_end(self, piece: Piece, events: list[ReplyEvent]) -> None:
        """Behind the arguments, or where they broke: up to the closing marker."""
        if piece.marker in (self._names.end_call, self._names.call, self._names.response):
            self._step = self._behind
            self._behind(piece, events)
        elif piece.text.strip(BLANK):
            self.ill_formed = True

    def _behind(self, piece: Piece, events: list[ReplyEvent]) -> None:
        """White space behind a call belongs to it, unless text follows."""
        if piece.marker in (self._names.end_call, self._names.response):
            return
        self._pending.append(piece.text)
        if piece.text.strip(BLANK):
            pending = "".join(self._pending[:-1])
            self._pending.clear()
            self._step = self._text
            show("" if piece.marker else pending, events)
            self._text(piece, events)


GEMMA4 = WholeReplyFamily(
    lambda context: GemmaReply(context, GEMMA4_MARKERS), GEMMA4_MARKERS.all, closers=(GEMMA4_MARKERS.end_call,)
)
FUNCTION_GEMMA = ToolFamily(
    lambda context: GemmaReply(context, FUNCTION_MARKERS), FUNCTION_MARKERS.all, closers=(FUNCTION_MARKERS.end_call,)
)
