"""Arguments of a call as FunctionGemma and Gemma 4 write them, read as they arrive and passed on as JSON:

    key:<escape>text<escape>,count:3,nested:{flag:true,list:[1,<escape>x<escape>]}}

Strings stand between two quote markers and hold any text; keys are bare, or quoted too. Other values are bare up to the next
comma or bracket: numbers, ``true``, ``false``, ``null`` or ``None``, and what is none of these is a string that lacks its quotes.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Any

from adapter.parsing.base import BLANK
from adapter.parsing.json_scanner import parse_json
from adapter.parsing.tools.json_writer import JsonWriter

MAX_BARE = 256
"""Characters of a bare key or value."""

_KEY = re.compile(r"[^:,{}\[\]]+")
_BARE = re.compile(r"[^,{}\[\]]+")
_WORDS = {"true": True, "false": False, "null": None, "none": None}
_CLOSERS = {"{": "}", "[": "]"}


class _At(Enum):
    KEY = auto()
    """A key, or the end of an object."""
    COLON = auto()
    VALUE = auto()
    ITEM = auto()
    """A value, or the end of a list."""
    AFTER = auto()
    """A comma, or the end of the innermost container."""
    IN_KEY = auto()
    IN_STRING = auto()


class GemmaArguments:
    """Reads what stands behind the opening brace, up to the closing one."""

    def __init__(self) -> None:
        self.done = False
        self.failed = False
        self._writer = JsonWriter()
        self._writer.open("{")
        self._at = _At.KEY
        self._held = ""
        self._key: list[str] = []

    @property
    def in_string(self) -> bool:
        """The next character belongs to a quoted string."""
        return self._at in (_At.IN_KEY, _At.IN_STRING)

    def feed(self, text: str) -> tuple[str, str]:
        """(JSON, rest). ``rest`` is what follows once ``done``; once ``failed`` the text from the step that broke it."""
        buffer, self._held = self._held + text, ""
        at = 0
        while at < len(buffer) and not (self.done or self.failed):
            end = self._step(buffer, at)
            if end is None:
                self._held = buffer[at:]
                return self._writer.take(), ""
            self.failed = end == at
            at = end
        return self._writer.take(), buffer[at:]

    def quote(self) -> str:
        """The quote marker has come. Gives JSON."""
        if self._held.strip(BLANK):  # a bare key or value goes on as a string
            self.failed = True
        elif self._at is _At.IN_KEY:
            self._writer.key("".join(self._key))
            self._at = _At.COLON
        elif self._at is _At.IN_STRING:
            self._writer.close_string()
            self._at = _At.AFTER
        elif self._at is _At.KEY:
            self._key.clear()
            self._at = _At.IN_KEY
        elif self._at in (_At.VALUE, _At.ITEM):
            self._writer.open_string()
            self._at = _At.IN_STRING
        else:
            self.failed = True
        self._held = ""
        return self._writer.take()

    def break_off(self) -> str:
        """JSON that ends the object where it broke."""
        self._writer.break_off()
        return self._writer.take()

    def _step(self, text: str, at: int) -> int | None:
        """Where the next step ends; None if that is not known yet; ``at`` itself if the text cannot go on like this."""
        if self._at is _At.IN_STRING:
            self._writer.characters(text[at:])
            return len(text)
        if self._at is _At.IN_KEY:
            self._key.append(text[at:])
            return len(text)
        char = text[at]
        if char in BLANK:
            return at + 1
        if char in "]}":
            return self._close(char, at)
        if self._at is _At.KEY:
            return self._bare_key(text, at)
        if self._at in (_At.COLON, _At.AFTER):
            return self._mark(char, at)
        return self._open(char, at) if char in _CLOSERS else self._bare_value(text, at)

    def _mark(self, char: str, at: int) -> int:
        if char != (":" if self._at is _At.COLON else ","):
            return at
        if char == ":":
            self._at = _At.VALUE
        else:
            self._at = _At.KEY if self._writer.innermost == "{" else _At.ITEM
        return at + 1

    def _bare_key(self, text: str, at: int) -> int | None:
        match = _KEY.match(text, at)
        end = match.end() if match else at
        if end - at > MAX_BARE:
            return at
        if end == len(text):
            return None
        if text[end] != ":":
            return at
        self._writer.key(text[at:end].strip(BLANK))
        self._at = _At.COLON
        return end

    def _bare_value(self, text: str, at: int) -> int | None:
        match = _BARE.match(text, at)
        end = match.end() if match else at
        if end - at > MAX_BARE:
            return at
        if end == len(text):
            return None
        if end > at:
            self._writer.value(_bare(text[at:end].strip(BLANK)))
            self._at = _At.AFTER
        return end

    def _open(self, char: str, at: int) -> int:
        if self._writer.is_full:
            return at
        self._writer.open(char)
        self._at = _At.KEY if char == "{" else _At.ITEM
        return at + 1

    def _close(self, char: str, at: int) -> int:
        if self._at not in (_At.KEY, _At.ITEM, _At.AFTER) or _CLOSERS[self._writer.innermost] != char:
            return at
        self._writer.close()
        self.done = not self._writer.depth
        self._at = _At.AFTER
        return at + 1


def _bare(word: str) -> Any:
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        return parse_json(word)
    except ValueError:
        return word
