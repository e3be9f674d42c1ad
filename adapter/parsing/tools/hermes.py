"""The JSON format of Hermes, Qwen2.5 and Qwen3:

    <tool_call>
    {"name": NAME, "arguments": {...}}
    </tool_call>

Source: the chat templates of these models. Arguments are streamed as the model writes them. The call is announced when they begin,
not when its name is read: until then nothing that a client could run exists, and a reply that is cut off there is visible text. A
call may name a tool that nobody offered; the client answers that. ``<function=`` in place of the JSON is the XML format.

What happens to a malformed call (``ill_formed`` is set in each case):

- broken or cut off inside its arguments: they are completed with every member null (``JsonScanner.completion``), so that no client
  runs half of a call; what follows up to ``</tool_call>`` is not shown;
- broken elsewhere, name known: the arguments are those that were complete, or ``{}``;
- ``arguments`` is neither an object nor the JSON text of one: ``{}``;
- a number that a double cannot hold: null in its place;
- no name, or cut off before its arguments: visible text, as it came.

Tolerated, since the meaning is plain: any order of members, further members, ``parameters`` for ``arguments``, none of them or null
(``{}``), a missing ``</tool_call>``. Closing brackets too many are dropped (``ill_formed``).
"""

from __future__ import annotations

from adapter.parsing.base import BLANK, ReplyContext
from adapter.parsing.markers import Markers
from adapter.parsing.tools.call_object import CallObject, ObjectState
from adapter.parsing.tools.family import ToolFamily
from adapter.parsing.tools.tagged import TAGS, BlockState, CallBlock, TaggedCalls
from adapter.parsing.tools.xml import xml_block
from adapter.types import ReplyEvent

SURPLUS = "}]"
"""Brackets after the end of the JSON: a frequent slip of models."""


def hermes_calls(context: ReplyContext) -> TaggedCalls:
    """A parser for one reply."""
    markers = context.markers
    return TaggedCalls(markers, {"{": lambda: JsonBlock(markers), "<": xml_block(context)})


HERMES = ToolFamily(hermes_calls, markers=TAGS, call_tags=TAGS)


class JsonBlock(CallBlock):
    """One call."""

    def __init__(self, markers: Markers) -> None:
        super().__init__(markers)
        self._object = CallObject(markers)

    def feed(self, text: str) -> list[ReplyEvent]:
        events: list[ReplyEvent] = []
        rest, self._held = self._held + text, ""
        while rest and self.state is BlockState.RUNNING:
            rest = self._step(rest, events)
        return events

    def finish(self) -> list[ReplyEvent]:
        events: list[ReplyEvent] = []
        if self._object.state is ObjectState.RUNNING:
            events = self._object.finish()
        self._take_over("")
        if self.state is BlockState.RUNNING:
            self._close("")
        return events

    def _step(self, text: str, events: list[ReplyEvent]) -> str:
        if self._object.state is ObjectState.BROKEN:
            return self._skip(text)
        if self._object.state is ObjectState.CLOSED:
            return self._after(text)
        more, rest = self._object.feed(text)
        events += more
        return self._take_over(rest)

    def _take_over(self, rest: str) -> str:
        self.ill_formed |= self._object.ill_formed
        if self._object.state is not ObjectState.REFUSED:
            return rest
        self.state = BlockState.REFUSED
        self.literal = self._object.literal
        self.rest = rest
        return ""

    def _after(self, text: str) -> str:
        """Behind the JSON; ``</tool_call>`` may follow."""
        word = text.lstrip(BLANK + SURPLUS)
        self.ill_formed |= bool(text[: len(text) - len(word)].strip(BLANK))
        if self._closing.startswith(word) and word != self._closing:
            self._held = word
            return ""
        return self._close(word.removeprefix(self._closing))
