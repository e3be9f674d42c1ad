"""The formats of Llama 3.1 to 4, and of Gemma 3, which are bare: a call is known only by what the reply begins with.

    {"name": NAME, "parameters": {...}}                JSON; several are separated by ``;``
    [NAME(a=1, b="x"), NAME()]                         pythonic
    <|python_tag|>{"type": "function", "name": ...}    either one behind the token that announces a call to a tool
    <|python_tag|>NAME.call(a="x")                     a built-in tool of Llama 3.1
    <|python_start|>[NAME(a=1)]<|python_end|>          Llama 4
    ```tool_code NAME(a=1)```                          Gemma 3; the fence may also be ``json`` or ``python``, around any form

Source: ``prompt_format.md`` of each version in meta-llama/llama-models; for Gemma 3 "Function calling with Gemma" (the prompts for
the first two forms) and "Meme generator" (the fence) in Google's Gemma documentation: it has no markers of its own.

Since such a reply may as well be prose, it is a call only at the very beginning and only if it names an offered tool and goes on
as a call does (``call_object``, ``pythonic``); everything else is visible text as it came. Behind ``<|python_tag|>`` as a token
JSON is a call whatever it names; code that is no call of an offered tool is visible text, since nobody offered a code
interpreter. Once a call has begun, malformed JSON or Python ends it, as ``hermes`` says, and the rest of the reply is not shown.
"""

from __future__ import annotations

import re

from adapter.parsing.base import BLANK, ReplyContext
from adapter.parsing.tools.call_object import CallObject, ObjectState
from adapter.parsing.tools.family import ToolFamily
from adapter.parsing.tools.marked import MarkedParser, Piece, show
from adapter.parsing.tools.pythonic import PythonicCalls
from adapter.types import ReplyEvent

TAG = "<|python_tag|>"
START = "<|python_start|>"
END = "<|python_end|>"
MARKERS = (TAG, START, END)
MAX_LEAD = 64
"""Characters of white space, tag and fence before the call."""
SEPARATORS = BLANK + ";,"
FENCE = "```"

_FENCE = re.compile(rf"{FENCE}(?:json|tool_code|tool_call|python)?[ \t]*\r?\n")


class BareCalls(MarkedParser):
    """See the module."""

    def __init__(self, context: ReplyContext) -> None:
        super().__init__(context.markers, MARKERS)
        self._markers = context.markers
        self._offered = frozenset(tool["function"]["name"] for tool in context.tools)
        self._calls: CallObject | PythonicCalls | None = None
        self._lead: list[str] = []
        """What stands before a call or behind it, and is visible text unless a call follows."""
        self._word = ""
        """The beginning of what may be a fence."""
        self._tagged = False
        self._tag_is_token = False
        self._fenced = False
        self._step = self._at_start

    def _take(self, piece: Piece, events: list[ReplyEvent]) -> None:
        self._step(piece, events)

    def _end(self, events: list[ReplyEvent]) -> None:
        if self._calls is not None:
            events += self._calls.finish()
            self._leave(self._calls, "", events)
        if self._step != self._behind:
            self._show_all(self._word, events)

    # A step takes one piece.

    def _text(self, piece: Piece, events: list[ReplyEvent]) -> None:
        show(piece.text, events)

    def _skip(self, piece: Piece, events: list[ReplyEvent]) -> None:
        """Behind the point where a call broke: not shown."""

    def _at_start(self, piece: Piece, events: list[ReplyEvent]) -> None:
        if piece.marker in (TAG, START) and not (self._tagged or self._word):
            self._lead.append(piece.text)
            self._tagged, self._tag_is_token = True, piece.is_token
            return
        text = self._word + piece.text
        word = text.lstrip(BLANK)
        self._lead.append(text[: len(text) - len(word)])
        self._word = ""
        if sum(map(len, self._lead)) > MAX_LEAD or piece.marker:
            self._show_all(word, events)
        elif word:
            self._first_word(word, events)

    def _first_word(self, word: str, events: list[ReplyEvent]) -> None:
        if word[0] in "{[":
            self._begin(word, events)
        elif not self._fenced and (word.startswith(FENCE) or FENCE.startswith(word)):
            self._fence(word, events)
        elif self._tagged or self._fenced:
            self._calls = PythonicCalls(self._offered, listed=False)
            self._in_calls(Piece(word), events)
        else:
            self._show_all(word, events)

    def _fence(self, word: str, events: list[ReplyEvent]) -> None:
        match = _FENCE.match(word)
        if match is not None:
            self._fenced = True
            self._lead.append(match.group())
            self._at_start(Piece(word[match.end() :]), events)
        elif "\n" in word or len(word) > MAX_LEAD:
            self._show_all(word, events)
        else:
            self._word = word

    def _begin(self, word: str, events: list[ReplyEvent]) -> None:
        if word[0] == "[":
            self._calls = PythonicCalls(self._offered)
        else:
            self._calls = CallObject(self._markers, None if self._tag_is_token else self._offered)
        self._in_calls(Piece(word), events)

    def _in_calls(self, piece: Piece, events: list[ReplyEvent]) -> None:
        assert self._calls is not None
        self._step = self._in_calls
        more, rest = self._calls.feed(self._markers.spelled(piece.text))
        events += more
        self._leave(self._calls, rest, events)

    def _leave(self, calls: CallObject | PythonicCalls, rest: str, events: list[ReplyEvent]) -> None:
        if calls.state is ObjectState.RUNNING:
            return
        self._calls = None
        self.ill_formed = self.ill_formed or calls.ill_formed
        if calls.state is ObjectState.REFUSED:
            self._show_all(calls.literal + rest, events)
            return
        self._lead.clear()
        self._step = self._skip if calls.state is ObjectState.BROKEN else self._behind
        if rest:
            self._step(Piece(rest), events)

    def _behind(self, piece: Piece, events: list[ReplyEvent]) -> None:
        """Behind a call: another one may follow."""
        text, self._word = self._word + piece.text, ""
        word = text.lstrip(SEPARATORS)
        self._lead.append(text[: len(text) - len(word)])
        if not word or piece.marker == END:
            return
        if word[0] == "{":
            self._begin(word, events)
        elif self._fenced and word.startswith(FENCE):
            self._fenced = False
            self._lead.append(FENCE)
            self._behind(Piece(word.removeprefix(FENCE)), events)
        elif self._fenced and FENCE.startswith(word):
            self._word = word
        else:
            self._show_all(word, events)

    def _show_all(self, text: str, events: list[ReplyEvent]) -> None:
        show("".join(self._lead) + text, events)
        self._lead.clear()
        self._word = ""
        self._step = self._text


LLAMA = ToolFamily(BareCalls, MARKERS, closers=("]", END))
