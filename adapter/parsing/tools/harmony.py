"""The harmony format of gpt-oss: a reply is a sequence of messages, each in a channel and perhaps to a recipient:

    <|start|>assistant<|channel|>analysis<|message|>REASONING<|end|>
    <|start|>assistant<|channel|>commentary<|message|>PREAMBLE, for the user to see<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
    <|start|>assistant<|channel|>final<|message|>TEXT<|return|>

Source: ``docs/format.md`` of openai/harmony. The prompt ends with ``<|start|>assistant``. The recipient may stand before or
behind the channel; a message with one is a call in whatever channel (built-in tools are called in ``analysis``). ``<|end|>``,
``<|call|>`` and ``<|return|>`` end a message alike; the last two end the reply. Messages of a kind that follow one another are
put together with a newline between them.

Why this machine and not the parser of the ``openai-harmony`` package: that one reads ids through a vocabulary of its own, which
it downloads or finds in a folder named by an environment variable of the whole process, and which has to be o200k_base to the
byte, so a fine-tuned vocabulary with tokens more cannot be read; it raises on what models do write (text between messages, a
header with words too many); and stop strings, literal markers and unfinished characters are dealt with on text here, for every
family the same. The package is the judge in the tests: on well-formed replies both must read the same messages.

A header is no text: one that is cut off, or never gets its ``<|message|>``, shows nothing but what stands behind its channel's
name. Text outside of any message is visible. Malformed calls are handled as ``hermes`` says, but that one which is cut off before
its arguments begin shows nothing.
"""

from __future__ import annotations

from enum import Enum, auto

from adapter.parsing.base import BLANK, ReplyContext
from adapter.parsing.tools.family import WholeReplyFamily
from adapter.parsing.tools.marked import MarkedParser, Piece
from adapter.parsing.tools.streamed import JsonCall
from adapter.types import ReasoningDelta, ReplyEvent, TextDelta

START = "<|start|>"
CHANNEL = "<|channel|>"
CONSTRAIN = "<|constrain|>"
MESSAGE = "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)
ANALYSIS = "analysis"
FINAL = "final"
RECIPIENT = "to="
NAMESPACE = "functions."
MODEL = "assistant"
MAX_HEADER = 1024
"""Characters of a header. Longer ones are none, but text."""
SEPARATOR = "\n"
"""Between messages of one kind."""


class _Kind(Enum):
    """What a message is for the client."""

    REASONING = auto()
    TEXT = auto()
    CALL = auto()


class _Header:
    """A header as far as it has come. ``role``: where the prompt or the format says it."""

    def __init__(self, role: str = "") -> None:
        self.part = START
        """The marker behind which its next text stands."""
        self._parts = {START: "", CHANNEL: "", CONSTRAIN: ""}
        self._has_role = bool(role)

    @property
    def text(self) -> str:
        return "".join(self._parts.values())

    @property
    def channel(self) -> str:
        return self._parts[CHANNEL].strip(BLANK).partition(" ")[0]

    @property
    def recipient(self) -> str:
        """ "" for the user."""
        words = " ".join(self._parts.values()).split()
        named = (word.removeprefix(RECIPIENT) for word in words if word.startswith(RECIPIENT))
        return next(named, "")

    @property
    def rest(self) -> str:
        """What is neither role nor channel."""
        start = self._parts[START] if self._has_role else self._parts[START].partition(" ")[2]
        return start + self._parts[CHANNEL].strip(BLANK).partition(" ")[2] + self._parts[CONSTRAIN]

    def add(self, text: str) -> None:
        self._parts[self.part] += text


class HarmonyReply(MarkedParser):
    """See the module; a ``ReplyParser``."""

    def __init__(self, context: ReplyContext) -> None:
        super().__init__(context.markers, MARKERS)
        self._markers = context.markers
        self._header = _Header(MODEL)
        self._kind = _Kind.TEXT
        self._call: JsonCall | None = None
        self._separator = ""
        """What to write before the next text."""
        self._written: set[_Kind] = set()
        """The kinds of which there has been text."""
        self._step = self._first_header
        self._read_prompt(context.prompt_tail)

    @property
    def inside(self) -> bool:
        return self._step == self._content and self._kind is _Kind.REASONING

    @property
    def settled(self) -> bool:
        """In the final message: no model goes on reasoning behind it."""
        return self._step == self._content and self._header.channel == FINAL

    def _read_prompt(self, tail: str) -> None:
        """A prompt may end anywhere in a message of the model's."""
        _, start, message = tail.rpartition(self._markers.look(START))
        if not start or not message.startswith(MODEL):
            return
        for piece in self._cutter.feed(message.removeprefix(MODEL)):
            self._take(piece, [])
        self._written.clear()

    def _take(self, piece: Piece, events: list[ReplyEvent]) -> None:
        self._step(piece, events)

    def _end(self, events: list[ReplyEvent]) -> None:
        if self._call is not None and not self._call.started:
            self.ill_formed = True
        elif self._step == self._content:
            self._end_message(events)
        elif self._step != self._between:
            self._end_header(events)

    # A step takes one piece.

    def _first_header(self, piece: Piece, events: list[ReplyEvent]) -> None:
        """The prompt has begun it: its role is known, so what is no recipient is text without a header."""
        word = (self._header.text + piece.text).lstrip(BLANK)
        if piece.marker or word.startswith(RECIPIENT):
            self._step = self._in_header
        elif not RECIPIENT.startswith(word):
            self._show_header(piece, events)
            return
        self._in_header(piece, events)

    def _in_header(self, piece: Piece, events: list[ReplyEvent]) -> None:
        if piece.marker in (CHANNEL, CONSTRAIN):
            self._header.part = piece.marker
        elif piece.marker == MESSAGE:
            self._begin_message()
        elif piece.marker == START:
            self._header = _Header()
        elif piece.marker:
            self._end_header(events)
        elif len(self._header.text) > MAX_HEADER:
            self._show_header(piece, events)
        else:
            self._header.add(piece.text)

    def _begin_message(self) -> None:
        recipient = self._header.recipient
        if recipient and recipient != MODEL:
            self._kind = _Kind.CALL
            self._call = JsonCall(self._markers.spelled(recipient.removeprefix(NAMESPACE)), self._markers)
        else:
            self._begin_text(_Kind.REASONING if self._header.channel == ANALYSIS else _Kind.TEXT)
        self._step = self._content

    def _begin_text(self, kind: _Kind) -> None:
        self._kind = kind
        self._separator = SEPARATOR if kind in self._written else ""
        self._step = self._content

    def _end_header(self, events: list[ReplyEvent]) -> None:
        """There is no message: what the header has of text is shown."""
        rest = self._header.rest
        self._begin_message()
        if self._call is not None:
            self.ill_formed = True
            self._call = None
        else:
            self._content(Piece(rest), events)
        self._step = self._between

    def _show_header(self, piece: Piece, events: list[ReplyEvent]) -> None:
        """It was none, but text."""
        text = self._header.text
        self._header = _Header(MODEL)
        self._begin_text(_Kind.TEXT)
        self._content(Piece(text + piece.text), events)

    def _content(self, piece: Piece, events: list[ReplyEvent]) -> None:
        in_string = self._call is not None and self._call.in_string and not piece.is_token
        if piece.marker in (START, *ENDS) and not in_string:
            self._end_message(events)
            if piece.marker == START:
                self._between(piece, events)
        elif self._call is not None:
            events += self._call.feed(piece.text)
        elif piece.text:
            text, self._separator = self._separator + piece.text, ""
            self._written.add(self._kind)
            events.append(ReasoningDelta(text) if self._kind is _Kind.REASONING else TextDelta(text))

    def _end_message(self, events: list[ReplyEvent]) -> None:
        if self._call is not None:
            events += self._call.end()
            self.ill_formed = self.ill_formed or self._call.ill_formed
            self._call = None
        self._step = self._between

    def _between(self, piece: Piece, events: list[ReplyEvent]) -> None:
        """Behind a message, where white space is no text."""
        self._header = _Header("" if piece.marker == START else MODEL)
        if piece.marker in (START, CHANNEL, CONSTRAIN, MESSAGE):
            self._step = self._in_header
            self._in_header(piece, events)
        elif not piece.marker and (text := piece.text.lstrip(BLANK)):
            self._begin_text(_Kind.TEXT)
            self._content(Piece(text), events)


HARMONY = WholeReplyFamily(HarmonyReply, MARKERS, closers=ENDS[1:2])
