"""A call that is one JSON object, its name among its members: ``{"name": NAME, "arguments": {...}}``.

Members may come in any order, further ones are skipped, and the first of a name counts. Arguments may be an object, its JSON text,
null or missing (``{}``); anything else is ``{}`` and ``ill_formed``.

Where such an object may as well be prose (``offered`` is given), it is a call only if it names one of the offered tools, has no
member that calls do not have before it does, and is well formed up to its arguments.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto
from typing import Any

from adapter.jsontext import json_text, read_json
from adapter.parsing.base import BLANK
from adapter.parsing.json_scanner import JsonScanner, parse_json
from adapter.parsing.markers import Markers
from adapter.parsing.tools.streamed import StreamedCall
from adapter.types import ReplyEvent

ARGUMENTS = ("arguments", "parameters")
MEMBERS = frozenset({"name", "type", "id", *ARGUMENTS})
"""What calls are written with: Mistral adds an id, Llama 3.1 a type."""


class ObjectState(Enum):
    RUNNING = auto()
    CLOSED = auto()
    """The call is complete."""
    BROKEN = auto()
    """The call was ended where its JSON broke."""
    REFUSED = auto()
    """It is no call: see ``literal``."""


class _At(Enum):
    OPEN = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()


_MOVES = {
    (_At.OPEN, "{"): _At.FIRST_KEY,
    (_At.COLON, ":"): _At.VALUE,
    (_At.COMMA, ","): _At.KEY,
}
_ENDS = (_At.FIRST_KEY, _At.COMMA)


class CallObject:
    """See the module. Feed it from the opening brace on."""

    def __init__(self, markers: Markers, offered: Collection[str] | None = None) -> None:
        self.state = ObjectState.RUNNING
        self.literal = ""
        """What an object that was REFUSED took of the text."""
        self.ill_formed = False
        self._markers = markers
        self._offered = offered
        self._at = _At.OPEN
        self._call = StreamedCall()
        self._taken: list[str] = []
        self._key = ""
        self._scanner: JsonScanner | None = None
        """Scans the key or value that is being written."""
        self._value: list[str] = []
        self._streams = False
        """What is being scanned is the object of arguments."""
        self._has_arguments = False
        self._other: Any = None
        """Arguments that are no object."""

    @property
    def in_string(self) -> bool:
        """The next character belongs to a string."""
        return self._scanner is not None and self._scanner.in_string

    def feed(self, text: str) -> tuple[list[ReplyEvent], str]:
        """The events, and what is left of the text once the state is no longer RUNNING."""
        events: list[ReplyEvent] = []
        rest = text
        while rest and self.state is ObjectState.RUNNING:
            rest = self._step(rest, events)
        self._note(text, rest)
        return events, rest

    def finish(self) -> list[ReplyEvent]:
        """No more text comes."""
        events: list[ReplyEvent] = []
        if self._call.started:
            self._break_off(events)
        else:
            self._refuse()
            self._note("", "")
        return events

    def _note(self, text: str, rest: str) -> None:
        if self._call.started:
            self._taken.clear()
            return
        self._taken.append(text)
        if self.state is ObjectState.REFUSED:
            taken = "".join(self._taken)
            self.literal = taken[: len(taken) - len(rest)]

    # A step takes text from the front, adds events, and gives back what is left.

    def _step(self, text: str, events: list[ReplyEvent]) -> str:
        if self._scanner is not None:
            return self._scan(self._scanner, text, events)
        word = text.lstrip(BLANK)
        if not word:
            return ""
        if self._at is _At.VALUE or (self._at in (_At.FIRST_KEY, _At.KEY) and word[0] == '"'):
            return self._scan(self._begin_scan(word[0]), word, events)
        if word[0] == "}" and self._at in _ENDS:
            self._close(events)
            return word[1:]
        target = _MOVES.get((self._at, word[0]))
        if target is None:
            self._broken(events)
            return word
        self._at = target
        return word[1:]

    def _begin_scan(self, first: str) -> JsonScanner:
        self._scanner = JsonScanner(self._markers)
        is_arguments = self._at is _At.VALUE and self._key in ARGUMENTS
        self._streams = is_arguments and first == "{" and not self._has_arguments
        self._has_arguments = self._has_arguments or (is_arguments and first == "{")
        return self._scanner

    def _scan(self, scanner: JsonScanner, text: str, events: list[ReplyEvent]) -> str:
        committed, rest = scanner.feed(text)
        if self._streams:
            events += self._call.add(committed)
        else:
            self._value.append(committed)
        self.ill_formed = self.ill_formed or scanner.lost_number
        if scanner.failed:
            self._broken(events)
        elif scanner.done:
            self._scanner = None
            self._end_scan(events)
        return rest

    def _end_scan(self, events: list[ReplyEvent]) -> None:
        if self._at is not _At.VALUE:
            self._key = read_json("".join(self._value))
            self._at = _At.COLON
            if self._is_bare and self._key not in MEMBERS:
                self._refuse()
        else:
            self._at = _At.COMMA
            if not self._streams:
                self._set(read_json("".join(self._value)), events)
        self._streams = False
        self._value.clear()

    def _set(self, value: Any, events: list[ReplyEvent]) -> None:
        if self._key == "name" and self._call.name is None:
            self._set_name(value, events)
        elif self._key in ARGUMENTS and not self._has_arguments:
            self._has_arguments = True
            self._other = value

    def _set_name(self, value: Any, events: list[ReplyEvent]) -> None:
        if not isinstance(value, str) or not value or (self._offered is not None and value not in self._offered):
            if self._offered is not None:
                self._refuse()
            return
        events += self._call.name_it(value)

    @property
    def _is_bare(self) -> bool:
        """It may still be prose."""
        return self._offered is not None and not self._call.started

    def _close(self, events: list[ReplyEvent]) -> None:
        if self._call.name is None:
            self._refuse()
            return
        if self._call.is_empty:
            events += self._call.add(json_text(self._from_other()))
        events += self._call.end()
        self.state = ObjectState.CLOSED

    def _broken(self, events: list[ReplyEvent]) -> None:
        if self._call.name is None or self._is_bare:
            self._refuse()
        else:
            self._break_off(events)

    def _break_off(self, events: list[ReplyEvent]) -> None:
        self.ill_formed = True
        if self._streams and self._scanner is not None:
            events += self._call.add(self._scanner.completion())
        elif self._call.is_empty:
            events += self._call.add(json_text(self._from_other()))
        events += self._call.end()
        self.state = ObjectState.BROKEN

    def _refuse(self) -> None:
        self.ill_formed = self._offered is None
        self.state = ObjectState.REFUSED

    def _from_other(self) -> dict[str, Any]:
        value = self._other
        if isinstance(value, str):
            try:
                value = parse_json(value)
            except ValueError:
                self.ill_formed = True
        if isinstance(value, dict):
            return value
        self.ill_formed = self.ill_formed or value is not None
        return {}
