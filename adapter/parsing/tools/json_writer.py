"""Writes a JSON object piece by piece, for formats that are not JSON themselves but are passed on as it while they arrive.

The caller says what comes next, the writer puts commas, quotes and escapes, and can end the object from any point.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from adapter.jsontext import json_text
from adapter.parsing.json_scanner import MAX_DEPTH

_CLOSERS = {"{": "}", "[": "]"}
_SURROGATES = re.compile("[\ud800-\udfff]")


class JsonWriter:
    """One object, its outer braces included: they are written by ``open`` and ``close`` like any other."""

    def __init__(self) -> None:
        self._written: list[str] = []
        self._open: list[str] = []
        self._is_first = True
        """Nothing has been written in the innermost container."""
        self._follows_key = False
        self._in_string = False
        self._keys: list[str] = []
        """The keys of the outermost object, as JSON."""

    @property
    def depth(self) -> int:
        """Containers that are open."""
        return len(self._open)

    @property
    def innermost(self) -> str:
        """``{`` or ``[``; "" outside of all."""
        return self._open[-1] if self._open else ""

    @property
    def is_full(self) -> bool:
        """No deeper container may be opened."""
        return len(self._open) == MAX_DEPTH

    def take(self) -> str:
        """What has been written since the last time."""
        written = "".join(self._written)
        self._written.clear()
        return written

    def open(self, container: str) -> None:
        """``{`` or ``[``."""
        self._separate()
        self._written.append(container)
        self._open.append(container)
        self._is_first = True

    def close(self) -> None:
        """The innermost container."""
        self._written.append(_CLOSERS[self._open.pop()])
        self._is_first = False

    def key(self, text: str) -> None:
        self._separate()
        written = _string(text)
        self._written.append(written + ":")
        self._follows_key = True
        if len(self._open) == 1:
            self._keys.append(written)

    def value(self, value: Any) -> None:
        """A whole value."""
        self._separate()
        self._written.append(json_text(value))
        self._is_first = False

    def open_string(self) -> None:
        self._separate()
        self._written.append('"')
        self._in_string = True

    def characters(self, text: str) -> None:
        """More of the string."""
        self._written.append(_string(text)[1:-1])

    def close_string(self) -> None:
        self._written.append('"')
        self._in_string = self._is_first = False

    def break_off(self) -> None:
        """End the object here, with null for every member that was begun: no client runs a call with half of its arguments."""
        if self._in_string:
            self.close_string()
        elif self._follows_key:
            self.value(None)
        while len(self._open) > 1:
            self.close()
        for key in self._keys[:]:
            self._separate()
            self._written.append(key + ":null")
            self._is_first = False
        if self._open:
            self.close()

    def _separate(self) -> None:
        """A comma, if something stands before what comes now."""
        if self._follows_key:
            self._follows_key = False
        elif not self._is_first:
            self._written.append(",")
        self._is_first = False


def _string(text: str) -> str:
    return orjson.dumps(_SURROGATES.sub("\ufffd", text)).decode()
