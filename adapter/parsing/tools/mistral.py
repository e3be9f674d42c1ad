"""The formats of Mistral's models, by the version of their instruct tokenizer:

    [TOOL_CALLS][{"name": NAME, "arguments": {...}, "id": ID}, ...]        v2, v3, v7
    [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...}[TOOL_CALLS]...                  v11
    [TOOL_CALLS]NAME[ARGS]{...}[TOOL_CALLS]NAME[ARGS]{...}                 v13 and later

Source: mistral-common, ``tokens/tokenizers/instruct.py``, ``_encode_tool_calls`` of each version. Reasoning is ``[THINK]`` ...
``[/THINK]`` (v13, the reasoning parser ``mistral``).

The marker is a token, so a call is announced as soon as its arguments begin, whether the tool was offered or not. Malformed calls
are handled as ``hermes`` says. Tolerated, since the meaning is plain: a list without its end, one object without a list around
it, a name with its arguments right behind it, white space between all of these.
"""

from __future__ import annotations

from adapter.parsing.base import BLANK, ReplyContext
from adapter.parsing.tools.call_object import CallObject, ObjectState
from adapter.parsing.tools.family import ToolFamily
from adapter.parsing.tools.marked import MarkedParser, Piece, show
from adapter.parsing.tools.streamed import JsonCall
from adapter.types import ReplyEvent

CALLS = "[TOOL_CALLS]"
CALL_ID = "[CALL_ID]"
ARGUMENTS = "[ARGS]"
MARKERS = (CALLS, CALL_ID, ARGUMENTS)
MAX_HEAD = 512
"""Characters between ``[TOOL_CALLS]`` and the arguments."""


class MistralCalls(MarkedParser):
    """See the module."""

    def __init__(self, context: ReplyContext) -> None:
        super().__init__(context.markers, MARKERS)
        self._markers = context.markers
        self._call: JsonCall | None = None
        self._object: CallObject | None = None
        self._in_list = False
        self._name = ""
        self._pending: list[str] = []
        """What has been read of a call that may still turn out to be none; white space behind a call."""
        self._step = self._text

    def _take(self, piece: Piece, events: list[ReplyEvent]) -> None:
        running = self._call or self._object
        literal = running is not None and running.in_string and not piece.is_token
        if piece.marker == CALLS and not literal:
            self._end(events)
            self._pending.append(piece.text)
            self._step = self._opened
        else:
            self._step(piece, events)

    def _end(self, events: list[ReplyEvent]) -> None:
        if self._object is not None:
            events += self._object.finish()
            self._leave_object(self._object, events)
        elif self._call is not None and (self._call.started or self._call.is_broken):
            events += self._call.end()
            self.ill_formed = self.ill_formed or self._call.ill_formed
        elif self._step not in (self._text, self._skip, self._behind) and self._may_be_text:
            self._refuse(events)
        self._call = None
        self._pending.clear()

    @property
    def _may_be_text(self) -> bool:
        """No call has come since the marker."""
        return self._pending[:1] == [self._markers.look(CALLS)]

    # A step takes one piece.

    def _text(self, piece: Piece, events: list[ReplyEvent]) -> None:
        show(piece.text, events)

    def _opened(self, piece: Piece, events: list[ReplyEvent]) -> None:
        word = piece.text.lstrip(BLANK)
        self._pending.append(piece.text[: len(piece.text) - len(word)])
        if not word:
            return
        self._in_list = word[0] == "["
        if self._in_list or word[0] == "{":
            self._pending.append(word[: self._in_list])
            self._objects(word[self._in_list :], events)
        else:
            self._name = ""
            self._step = self._named
            self._named(Piece(word, piece.marker), events)

    def _named(self, piece: Piece, events: list[ReplyEvent]) -> None:
        if piece.marker:
            self._pending.append(piece.text)
            self._step = self._id
            if piece.marker == ARGUMENTS:
                self._begin_arguments(events)
            return
        name, brace, arguments = piece.text.partition("{")
        self._name += name
        self._pending.append(name)
        if brace:
            self._begin_arguments(events)
            self._step(Piece(brace + arguments), events)
        elif len(self._name) > MAX_HEAD:
            self._refuse(events)

    def _id(self, piece: Piece, events: list[ReplyEvent]) -> None:
        """The call's id, which is nobody's business: clients are given ids of our own."""
        self._pending.append(piece.text)
        if piece.marker == ARGUMENTS:
            self._begin_arguments(events)
        elif sum(map(len, self._pending)) > MAX_HEAD:
            self._refuse(events)

    def _begin_arguments(self, events: list[ReplyEvent]) -> None:
        name = self._markers.spelled(self._name.strip(BLANK))
        if name:
            self._call = JsonCall(name, self._markers)
            self._step = self._arguments
        else:
            self._refuse(events)

    def _arguments(self, piece: Piece, events: list[ReplyEvent]) -> None:
        assert self._call is not None
        events += self._call.feed(piece.text)
        if not self._call.started:
            self._pending.append(piece.text)

    def _in_objects(self, piece: Piece, events: list[ReplyEvent]) -> None:
        self._objects(piece.text, events)

    def _objects(self, text: str, events: list[ReplyEvent]) -> None:
        self._step = self._in_objects
        while text and self._step == self._in_objects:
            if self._object is None:
                text = self._between_objects(text, events)
            else:
                more, text = self._object.feed(text)
                events += more
                self._leave_object(self._object, events)
        if text:
            self._step(Piece(text), events)

    def _between_objects(self, text: str, events: list[ReplyEvent]) -> str:
        word = text.lstrip(BLANK + ",")
        self._pending.append(text[: len(text) - len(word)])
        if word.startswith("{"):
            self._object = CallObject(self._markers)
        elif word.startswith("]"):
            self._end_list(events)
            return word[1:]
        elif word:
            self._refuse(events)
        return word

    def _leave_object(self, call: CallObject, events: list[ReplyEvent]) -> None:
        if call.state is ObjectState.RUNNING:
            return
        self._object = None
        self.ill_formed = self.ill_formed or call.ill_formed
        if call.state is ObjectState.REFUSED:
            self._pending.append(call.literal)
            self._refuse(events)
            return
        self._pending.clear()
        if call.state is ObjectState.BROKEN:
            self._step = self._skip
        elif not self._in_list:
            self._step = self._behind

    def _end_list(self, events: list[ReplyEvent]) -> None:
        if self._may_be_text:
            self._pending.append("]")
            self._refuse(events)
        else:
            self._pending.clear()
            self._step = self._behind

    def _skip(self, piece: Piece, events: list[ReplyEvent]) -> None:
        """Behind the point where a call broke: not shown."""

    def _behind(self, piece: Piece, events: list[ReplyEvent]) -> None:
        """White space behind the calls belongs to them, unless text follows."""
        self._pending.append(piece.text)
        if piece.text.strip(BLANK):
            show("".join(self._pending), events)
            self._pending.clear()
            self._step = self._text

    def _refuse(self, events: list[ReplyEvent]) -> None:
        self.ill_formed = True
        show("".join(self._pending), events)
        self._pending.clear()
        self._call = None
        self._step = self._text


MISTRAL = ToolFamily(MistralCalls, MARKERS, closers=("]",))
