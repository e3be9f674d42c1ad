"""A call whose arguments are written one by one and without quotes, passed on as a JSON object while they arrive.

A parameter that may be a string is one, and its characters are passed on as they come; any other has to be complete before its type
and so its JSON is known. Such types come from the tool's schema, unless the format itself tells strings from JSON.
"""

from __future__ import annotations

from adapter.parsing.json_scanner import parse_json
from adapter.parsing.tools.json_writer import JsonWriter
from adapter.parsing.tools.schema import ToolTypes
from adapter.parsing.tools.streamed import StreamedCall
from adapter.types import ReplyEvent


class ParameterCall:
    """The events of one call. A parameter is ``begin``, ``add`` for its text in pieces, ``close``."""

    def __init__(self, name: str, types: ToolTypes) -> None:
        self.ill_formed = False
        self._name = name
        self._types = types
        self._call = StreamedCall(name)
        self._json = JsonWriter()
        self._key = ""
        self._is_string: bool | None = None
        self._streams = False
        self._text: list[str] = []
        """The parameter so far, if it isn't passed on as it comes."""

    @property
    def started(self) -> bool:
        """Something of the call has been passed on."""
        return self._call.started

    def begin(self, key: str, is_string: bool | None = None) -> list[ReplyEvent]:
        """``is_string``: what the format says of the value, if it does."""
        if not self._json.depth:
            self._json.open("{")
        self._json.key(key)
        self._key = key
        self._is_string = is_string
        self._streams = self._types.is_text(self._name, key) if is_string is None else is_string
        if self._streams:
            self._json.open_string()
        return self._flush()

    def add(self, text: str) -> list[ReplyEvent]:
        if self._streams:
            self._json.characters(text)
        else:
            self._text.append(text)
        return self._flush()

    def close(self) -> list[ReplyEvent]:
        if self._streams:
            self._json.close_string()
        else:
            self._write("".join(self._text))
            self._text.clear()
        return self._flush()

    def end(self) -> list[ReplyEvent]:
        """No more parameters come."""
        if self._json.depth:
            self._json.close()
        return [*self._flush(), *self._call.end()]

    def break_off(self) -> list[ReplyEvent]:
        """The markup broke here: every parameter that was begun is null."""
        self.ill_formed = True
        if self._json.depth:
            self._json.break_off()
        return [*self._flush(), *self._call.end()]

    def _write(self, text: str) -> None:
        if self._is_string is None:
            self._json.value(self._types.value(self._name, self._key, text))
            return
        try:
            self._json.value(parse_json(text))
        except ValueError:
            self.ill_formed = True
            self._json.value(text)

    def _flush(self) -> list[ReplyEvent]:
        return self._call.add(self._json.take())
