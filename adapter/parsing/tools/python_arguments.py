"""Arguments of a call in Python's syntax, read as they arrive and passed on as JSON: ``a=1, b="x", c=[None, {"k": True}])``.

Literals are those of JSON by Python's names: strings (single, double or triple quotes, with escapes), numbers, ``True``, ``False``,
``None`` (and their JSON names, which models mix in), lists, tuples and dicts with string keys. Line breaks inside quotes are taken
for what they are. Anything else (positional arguments, names, expressions) is not accepted.
"""

from __future__ import annotations

import math
import re
from enum import Enum, auto
from typing import Any

from adapter.parsing.base import BLANK
from adapter.parsing.json_scanner import MAX_SCALAR
from adapter.parsing.tools.json_writer import JsonWriter

MAX_NAME = 256
"""Characters of an argument's name."""

_NAME = re.compile(r"[^\W\d]\w*")
_WORD = re.compile(r"[-+.\w]+")
_QUOTES = re.compile(r"'''|\"\"\"|'|\"")
_CHARACTERS = {"'": re.compile(r"[^\\']+"), '"': re.compile(r'[^\\"]+')}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9](?:_?\d)*)")
_FLOAT = re.compile(r"[-+]?(?:\d(?:_?\d)*\.?(?:\d(?:_?\d)*)?|\.\d(?:_?\d)*)(?:[eE][-+]?\d+)?")
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_ESCAPE = re.compile(
    r"\\(?:(?P<one>[\\'\"abfnrtv\n])|x(?P<hex>[0-9a-fA-F]{2})|(?P<octal>[0-7]{1,3})"
    r"|u[dD](?P<high>[89abAB][0-9a-fA-F]{2})\\u[dD](?P<low>[c-fC-F][0-9a-fA-F]{2})"
    r"|u(?P<bmp>(?![dD][89a-fA-F])[0-9a-fA-F]{4})|U(?P<any>[0-9a-fA-F]{8}))"
)
_ESCAPE_BEGUN = re.compile(
    r"\\(?:x[0-9a-fA-F]?|[0-7]{1,2}|u(?:[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?|[0-9a-fA-F]{0,3})"
    r"|U[0-9a-fA-F]{0,7})?"
)
"""More characters may belong to it."""
_ONE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\n": ""}
_CLOSERS = {"(": ")", "[": "]", "{": "}"}


class _At(Enum):
    NAME = auto()
    """An argument's name, or the end of the call."""
    EQUALS = auto()
    ITEM = auto()
    """A value, or the end of a list."""
    VALUE = auto()
    KEY = auto()
    """A key, or the end of a dict."""
    COLON = auto()
    AFTER = auto()
    """A comma, or the end of the innermost container."""
    IN_STRING = auto()


_MAY_END = (_At.NAME, _At.ITEM, _At.KEY, _At.AFTER)
"""A comma before the closing bracket is allowed everywhere."""


class PythonArguments:
    """Reads what stands behind the opening parenthesis, up to the closing one."""

    def __init__(self) -> None:
        self.done = False
        self.failed = False
        self.has_argument = False
        """An argument's name and the ``=`` behind it have been read."""
        self._writer = JsonWriter()
        self._writer.open("{")
        self._brackets = ["("]
        self._at = _At.NAME
        self._held = ""
        self._quotes = ""
        self._key: list[str] | None = None
        """The key of a dict that is being read."""
        self._name = ""

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

    def break_off(self) -> str:
        """JSON that ends the object where it broke."""
        self._writer.break_off()
        return self._writer.take()

    def _step(self, text: str, at: int) -> int | None:
        """Where the next step ends; None if that is not known yet; ``at`` itself if the text cannot go on like this."""
        if self._at is _At.IN_STRING:
            return self._in_string(text, at)
        char = text[at]
        if char in BLANK:
            return at + 1
        if char in ")]}":
            return self._close(char, at)
        if self._at is _At.NAME:
            return self._argument_name(text, at)
        if self._at in (_At.EQUALS, _At.COLON, _At.AFTER):
            return self._mark(char, at)
        if char in "'\"":
            return self._begin_string(text, at)
        if self._at is _At.KEY:
            return at
        return self._open(char, at) if char in _CLOSERS else self._scalar(text, at)

    def _mark(self, char: str, at: int) -> int:
        if self._at is _At.EQUALS and char == "=":
            self.has_argument = True
            self._writer.key(self._name)
            self._at = _At.VALUE
        elif self._at is _At.COLON and char == ":":
            self._at = _At.VALUE
        elif self._at is _At.AFTER and char == ",":
            self._at = self._next_item()
        else:
            return at
        return at + 1

    def _next_item(self) -> _At:
        if len(self._brackets) == 1:
            return _At.NAME
        return _At.KEY if self._brackets[-1] == "{" else _At.ITEM

    def _argument_name(self, text: str, at: int) -> int | None:
        match = _NAME.match(text, at)
        end = match.end() if match else at
        if end - at > MAX_NAME:
            return at
        if end == len(text):
            return None
        self._name = text[at:end]
        self._at = _At.EQUALS
        return end

    def _open(self, char: str, at: int) -> int:
        if self._writer.is_full:
            return at
        self._writer.open("{" if char == "{" else "[")
        self._brackets.append(char)
        self._at = _At.KEY if char == "{" else _At.ITEM
        return at + 1

    def _close(self, char: str, at: int) -> int:
        if self._at not in _MAY_END or _CLOSERS[self._brackets[-1]] != char:
            return at
        self._brackets.pop()
        self._writer.close()
        self.done = not self._brackets
        self._at = _At.AFTER
        return at + 1

    def _scalar(self, text: str, at: int) -> int | None:
        match = _WORD.match(text, at)
        end = match.end() if match else at
        if end - at > MAX_SCALAR:
            return at
        if end == len(text):
            return None
        try:
            self._writer.value(_scalar(text[at:end]))
        except ValueError:
            return at
        self._at = _At.AFTER
        return end

    def _begin_string(self, text: str, at: int) -> int | None:
        if len(text) - at < 3 and text[at:] == text[at] * (len(text) - at):
            return None  # it may be one of three quotes
        match = _QUOTES.match(text, at)
        assert match is not None
        self._quotes = match.group()
        if self._at is _At.KEY:
            self._key = []
        else:
            self._writer.open_string()
        self._at = _At.IN_STRING
        return match.end()

    def _in_string(self, text: str, at: int) -> int | None:
        if text.startswith(self._quotes, at):
            self._end_string()
            return at + len(self._quotes)
        if text[at] == "\\":
            return self._escape(text, at)
        if text[at] == self._quotes[0]:
            if len(text) - at < len(self._quotes):
                return None
            end = at + 1
        else:
            match = _CHARACTERS[self._quotes[0]].match(text, at)
            assert match is not None
            end = match.end()
        self._characters(text[at:end])
        return end

    def _escape(self, text: str, at: int) -> int | None:
        match = _ESCAPE.match(text, at)
        begun = _ESCAPE_BEGUN.fullmatch(text, at)
        if begun is not None:
            return None
        if match is None and text[at + 1] in "xuU":
            return at
        self._characters(
            "\\" if match is None else _unescaped(match)
        )  # Python keeps the backslash of what is no escape
        return at + 1 if match is None else match.end()

    def _characters(self, text: str) -> None:
        if self._key is not None:
            self._key.append(text)
        else:
            self._writer.characters(text)

    def _end_string(self) -> None:
        if self._key is not None:
            self._writer.key("".join(self._key))
            self._key = None
            self._at = _At.COLON
        else:
            self._writer.close_string()
            self._at = _At.AFTER


def _scalar(word: str) -> Any:
    """Raises: ValueError."""
    if word in _WORDS:
        return _WORDS[word]
    if _INTEGER.fullmatch(word):
        return int(word)
    if _FLOAT.fullmatch(word) and math.isfinite(number := float(word)):
        return number
    raise ValueError(word)


def _unescaped(match: re.Match[str]) -> str:
    if match["one"] is not None:
        return _ONE.get(match["one"], match["one"])
    if match["high"] is not None:
        return chr(0x10000 + ((int("d" + match["high"], 16) - 0xD800) << 10) + int("d" + match["low"], 16) - 0xDC00)
    if match["octal"] is not None:
        return chr(int(match["octal"], 8))
    number = int(match["hex"] or match["bmp"] or match["any"], 16)
    return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else "\ufffd"
