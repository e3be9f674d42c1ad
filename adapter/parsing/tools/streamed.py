"""One tool call whose arguments are passed on as they arrive."""

from __future__ import annotations

from adapter.jsontext import read_json
from adapter.parsing.base import BLANK
from adapter.parsing.json_scanner import JsonScanner
from adapter.parsing.markers import Markers
from adapter.types import ReplyEvent, ToolCallDelta, ToolCallEnd, ToolCallStart, ToolUse


class StreamedCall:
    """The events of one call. It starts once its name is known and its arguments have more than their opening bracket: until then
    nothing that a client could run exists, and a reply that is cut off there is visible text."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self.started = False
        self.ended = False
        self._substance = False
        self._waiting: list[str] = []
        self._sent: list[str] = []

    @property
    def is_empty(self) -> bool:
        """Nothing of the arguments has come."""
        return not (self._waiting or self._sent)

    def name_it(self, name: str) -> list[ReplyEvent]:
        self.name = name
        return self._flush()

    def add(self, arguments: str) -> list[ReplyEvent]:
        """More of the arguments' object."""
        self._substance = self._substance or bool(arguments.strip(BLANK + "{"))
        if arguments:
            self._waiting.append(arguments)
        return self._flush()

    def end(self) -> list[ReplyEvent]:
        """No more arguments come; what came is a JSON object, or nothing."""
        assert self.name is not None
        if self.is_empty:
            self._waiting.append("{}")
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


class JsonCall:
    """A call whose name is known, and whose arguments are a JSON object that some marker of the format ends.

    ``feed`` takes all text up to that marker, ``end`` says that it has come. Malformed arguments set ``ill_formed``: from where
    they break they are completed with nulls; if they are no object they are ``{}``. So are arguments that are missing, which is
    no fault. ``ignored``: characters that may stand behind the object.
    """

    def __init__(self, name: str, markers: Markers, ignored: str = BLANK) -> None:
        self.ill_formed = False
        self._ignored = ignored
        self._call = StreamedCall(name)
        self._scanner = JsonScanner(markers)
        self._begun = False
        self._broken = False

    @property
    def started(self) -> bool:
        """Something of the call has been passed on."""
        return self._call.started

    @property
    def is_broken(self) -> bool:
        """The arguments are no JSON object, nor the beginning of one."""
        return self._broken

    @property
    def in_string(self) -> bool:
        """The next character belongs to a string of the arguments."""
        return self._begun and not (self._broken or self._call.ended) and self._scanner.in_string

    def feed(self, text: str) -> list[ReplyEvent]:
        if not self._begun:
            text = text.lstrip(BLANK)
            self._begun = bool(text)
            self._broken = text[:1] not in ("", "{")
        if self._broken:
            self.ill_formed = True
            return []
        if self._call.ended:
            self.ill_formed = self.ill_formed or bool(text.strip(self._ignored))
            return []
        return self._scan(text)

    def end(self) -> list[ReplyEvent]:
        if self._call.ended:
            return []
        if self._begun:
            self.ill_formed = True
        if not self._call.is_empty:
            return [*self._call.add(self._scanner.completion()), *self._call.end()]
        return self._call.end()

    def _scan(self, text: str) -> list[ReplyEvent]:
        committed, rest = self._scanner.feed(text)
        events = self._call.add(committed)
        self.ill_formed = self.ill_formed or self._scanner.lost_number
        if self._scanner.failed:
            self._broken = self.ill_formed = True
        elif self._scanner.done:
            events += self._call.end()
            self.ill_formed = self.ill_formed or bool(rest.strip(self._ignored))
        return events
