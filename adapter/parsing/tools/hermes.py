"""The JSON format of Hermes, Qwen2.5 and Qwen3:

    <tool_call>
    {"name": NAME, "arguments": {...}}
    </tool_call>

Arguments are streamed as the model writes them. The call is announced when they begin, not when its name is read: until then
nothing that a client could run exists, and a reply that is cut off there is visible text. A call may name a tool that nobody
offered; the client answers that. ``<function=`` in place of the JSON is the XML format.

What happens to a malformed call (``ill_formed`` is set in each case):

- broken or cut off inside its arguments: they are completed with every member null (``JsonScanner.completion``), so that no client
  runs half of a call; what follows up to ``</tool_call>`` is not shown;
- broken elsewhere, name known: the arguments are those that were complete, or ``{}``;
- ``arguments`` is neither an object nor the JSON text of one: ``{}``;
- no name, or cut off before its arguments: visible text, as it came.

Tolerated, since the meaning is plain: any order of members, further members, no ``arguments`` or null (``{}``), a missing
``</tool_call>``. Closing brackets too many are dropped (``ill_formed``).
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Any

import orjson

from adapter.jsontext import read_json
from adapter.parsing.base import BLANK, ReplyContext, held_suffix
from adapter.parsing.json_scanner import JsonScanner, parse_json
from adapter.parsing.markers import Markers
from adapter.parsing.tools.family import ToolFamily
from adapter.parsing.tools.tagged import CLOSE, OPEN, TAGS, BlockState, TaggedCalls
from adapter.parsing.tools.xml import xml_block
from adapter.types import ReplyEvent, ToolCallDelta, ToolCallEnd, ToolCallStart, ToolUse

SURPLUS = "}]"
"""Brackets after the end of the JSON: a frequent slip of models."""


def hermes_calls(context: ReplyContext) -> TaggedCalls:
    """A parser for one reply."""
    markers = context.markers
    return TaggedCalls(markers, {"{": lambda: JsonCall(markers), "<": xml_block(context)})


HERMES = ToolFamily(hermes_calls, markers=TAGS, call_tags=TAGS)


class _At(Enum):
    """Where in ``{"name": NAME, "arguments": {...}}`` and what follows it the block stands."""

    OPEN = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()
    END = auto()
    """Behind the JSON; ``</tool_call>`` may follow."""
    BROKEN = auto()
    """Behind the point where it broke; ``</tool_call>`` may follow some time."""


_MOVES = {
    (_At.OPEN, "{"): _At.FIRST_KEY,
    (_At.FIRST_KEY, "}"): _At.END,
    (_At.COLON, ":"): _At.VALUE,
    (_At.COMMA, ","): _At.KEY,
    (_At.COMMA, "}"): _At.END,
}


class JsonCall:
    """One call, a ``CallBlock``."""

    def __init__(self, markers: Markers) -> None:
        self.state = BlockState.RUNNING
        self._markers = markers
        self._opening = markers.look(OPEN)
        self._closing = markers.look(CLOSE)
        self.literal = ""
        self.rest = ""
        self.ill_formed = False
        self._at = _At.OPEN
        self._call = _Call()
        self._events: list[ReplyEvent] = []
        self._taken: list[str] = []
        """All text so far, while it may still turn out to be no call."""
        self._held = ""
        self._key = ""
        self._scanner: JsonScanner | None = None
        """Scans the key or value that is being written."""
        self._value: list[str] = []
        self._in_arguments = False
        """What is being scanned is the object that is passed on."""

    def feed(self, text: str) -> list[ReplyEvent]:
        self._taken.append(text)
        rest, self._held = self._held + text, ""
        while rest and self.state is BlockState.RUNNING:
            rest = self._step(rest)
        if self._call.started:
            self._taken.clear()
        events, self._events = self._events, []
        return events

    def finish(self) -> list[ReplyEvent]:
        if self._call.started:
            if not self._call.ended:
                self._break_off()
            self.state = BlockState.CLOSED
        else:
            self._refuse("")
        return self._events

    def _step(self, text: str) -> str:
        """Take text from the front; gives back what is left to deal with, "" when that is nothing or the rest is held."""
        if self._at is _At.END:
            return self._after(text)
        if self._at is _At.BROKEN:
            return self._skip(text)
        if self._scanner is not None:
            return self._scan(self._scanner, text)
        word = text.lstrip(BLANK)
        if not word:
            return ""
        if self._at is _At.VALUE or (self._at in (_At.FIRST_KEY, _At.KEY) and word[0] == '"'):
            return self._scan(self._begin_scan(word[0]), word)
        return self._move(word)

    def _move(self, word: str) -> str:
        target = _MOVES.get((self._at, word[0]))
        if target is None:
            return self._broken(word)
        self._at = target
        if target is _At.END:
            if self._call.name is None:
                return self._refuse(word[1:])
            self._events += self._call.end()
            self.ill_formed = self._call.odd
        return word[1:]

    def _begin_scan(self, first: str) -> JsonScanner:
        self._scanner = JsonScanner(self._markers)
        is_arguments = self._at is _At.VALUE and self._key == "arguments"
        self._in_arguments = is_arguments and first == "{" and not self._call.has_arguments
        return self._scanner

    def _scan(self, scanner: JsonScanner, text: str) -> str:
        committed, rest = scanner.feed(text)
        if self._in_arguments:
            self._events += self._call.add(committed)
        else:
            self._value.append(committed)
        if scanner.failed:
            return self._broken(rest)
        if scanner.done:
            self._scanner = None
            self._end_scan()
        return rest

    def _end_scan(self) -> None:
        if self._at is not _At.VALUE:
            self._key = read_json("".join(self._value))
            self._at = _At.COLON
        else:
            if not self._in_arguments:
                self._events += self._call.set(self._key, read_json("".join(self._value)))
            self._at = _At.COMMA
        self._in_arguments = False
        self._value.clear()

    def _broken(self, rest: str) -> str:
        if self._call.name is None:
            return self._refuse(rest)
        self._break_off()
        self._at = _At.BROKEN
        return rest

    def _break_off(self) -> None:
        self.ill_formed = True
        if self._in_arguments and self._scanner is not None:
            self._events += self._call.add(self._scanner.completion())
        self._events += self._call.end()

    def _refuse(self, rest: str) -> str:
        taken = "".join(self._taken)
        self.state = BlockState.REFUSED
        self.ill_formed = True
        self.literal = taken[: len(taken) - len(rest)]
        self.rest = rest
        return ""

    def _after(self, text: str) -> str:
        word = text.lstrip(BLANK + SURPLUS)
        self.ill_formed |= bool(text[: len(text) - len(word)].strip(BLANK))
        if self._closing.startswith(word) and word != self._closing:
            self._held = word
            return ""
        return self._close(word.removeprefix(self._closing))

    def _skip(self, text: str) -> str:
        tag = re.search(f"{self._opening}|{self._closing}", text)
        if tag is None:
            self._held = text[len(text) - held_suffix(text, self._opening, self._closing) :]
            return ""
        return self._close(text[tag.start() :].removeprefix(self._closing))

    def _close(self, rest: str) -> str:
        self.state = BlockState.CLOSED
        self.rest = rest
        return ""


class _Call:
    """The events of one call. It starts once its name is known and its arguments have more than their opening bracket."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.started = False
        self.ended = False
        self.has_arguments = False
        self.odd = False
        """The arguments were no object, nor the JSON text of one."""
        self._substance = False
        self._other: Any = None
        self._waiting: list[str] = []
        self._sent: list[str] = []

    def set(self, key: str, value: Any) -> list[ReplyEvent]:
        """A member other than an object of arguments. The first one of a name counts."""
        if key == "name" and self.name is None and isinstance(value, str) and value:
            self.name = value
            return self._flush()
        if key == "arguments" and not self.has_arguments:
            self.has_arguments = True
            self._other = value
        return []

    def add(self, arguments: str) -> list[ReplyEvent]:
        """More of the arguments' object."""
        self.has_arguments = True
        self._substance |= bool(arguments.strip(BLANK + "{"))
        self._waiting.append(arguments)
        return self._flush()

    def end(self) -> list[ReplyEvent]:
        """No more arguments come."""
        assert self.name is not None
        if not (self._waiting or self._sent):
            self._waiting.append(orjson.dumps(self._from_other()).decode())
        self._substance = True
        events = self._flush()
        self.ended = True
        return [*events, ToolCallEnd(ToolUse(self.name, read_json("".join(self._sent))))]

    def _flush(self) -> list[ReplyEvent]:
        if self.name is None or not self._substance:
            return []
        events: list[ReplyEvent] = [] if self.started else [ToolCallStart(self.name)]
        self.started = True
        if fragment := "".join(self._waiting):
            events.append(ToolCallDelta(fragment))
        self._sent += self._waiting
        self._waiting.clear()
        return events

    def _from_other(self) -> dict[str, Any]:
        value = self._other
        if isinstance(value, str):
            try:
                value = parse_json(value)
            except ValueError:
                self.odd = True
        if isinstance(value, dict):
            return value
        self.odd |= value is not None
        return {}
