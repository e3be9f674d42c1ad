"""A JSON text as it arrives: how much of it is certainly well formed, where it ends, and how to end it early.

Arguments of a tool call are streamed while the model is still writing them, and what was streamed cannot be taken back. So text is
passed on (*committed*) only as far as it is the beginning of a JSON value, in whole steps: a number, a literal or an escape is
committed when it is complete. From any such point ``completion`` makes the whole a valid object.

The grammar is RFC 8259 as ``orjson`` reads it, because what was committed must load: no lone surrogates, no control characters in
strings; and a depth that both ``orjson.loads`` (1024) and ``orjson.dumps`` (254) can take. A number that a double cannot hold is
committed as null.
"""

from __future__ import annotations

import math
import re
from enum import Enum, auto
from typing import Any

from adapter.jsontext import read_json
from adapter.parsing.base import BLANK
from adapter.parsing.markers import Markers

MAX_DEPTH = 128
"""Nested containers. Beyond it the text is not accepted."""
MAX_SCALAR = 1024
"""Characters of a number."""
ESCAPE_LENGTH = 12
"""Characters of the longest escape: a surrogate pair."""

_HEX = "[0-9a-fA-F]"
_ESCAPE = (
    rf'\\(?:["\\/bfnrt]|u(?:[0-9a-ce-fA-CE-F]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}}'
    rf"|[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}))"
)
_CHARACTERS = re.compile(rf'(?:[^"\\\x00-\x1f\ud800-\udfff]++|{_ESCAPE})+')
_CHARACTERS_AND_STAND_INS = re.compile(rf'(?:[^"\\\x00-\x1f]++|{_ESCAPE})+')
_BLANKS = re.compile(rf"[{BLANK}]+")
_MARKS = frozenset('{}[]:,"')
_SCALAR = re.compile(rf"[-+.0-9A-Za-z]{{1,{MAX_SCALAR + 1}}}")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_CLOSERS = {"{": "}", "[": "]"}
_LITERALS = frozenset({"true", "false", "null"})


class _At(Enum):
    """What may come next."""

    VALUE = auto()
    FIRST_ITEM = auto()
    """A value, or the end of an array that is empty so far."""
    FIRST_KEY = auto()
    """A key, or the end of an object that is empty so far."""
    KEY = auto()
    COLON = auto()
    AFTER = auto()
    """A comma, or the end of the innermost container."""
    IN_KEY = auto()
    IN_STRING = auto()


_COMPLETIONS = {_At.VALUE: "null", _At.KEY: '"":null', _At.COLON: ":null", _At.IN_KEY: '":null', _At.IN_STRING: '"'}
"""The shortest end of the innermost member or item; nothing where none is begun."""


_NO_MARKERS = Markers()


class JsonScanner:
    """Scans one value. Linear: a character is looked at once, but for the few that are held.

    A stand-in (``adapter.parsing.markers``) inside a string is the text that it stands for, and is committed as that.
    """

    def __init__(self, markers: Markers = _NO_MARKERS) -> None:
        self.done = False
        self._spelled = markers.spelled_in_json
        self._characters = _CHARACTERS_AND_STAND_INS if markers.stand_ins else _CHARACTERS
        self.failed = False
        self.lost_number = False
        """A number was too large for a double."""
        self._is_lost = False
        """The step before was such a number."""
        self._at = _At.VALUE
        self._open: list[str] = []
        self._held = ""
        self._key: list[str] = []
        self._keys: list[str] = []
        """The complete keys of the outermost object, as written, with their quotes."""

    def feed(self, text: str) -> tuple[str, str]:
        """(committed, rest). ``rest`` is "" while the value goes on; what follows the value once ``done``; once ``failed`` the text
        from the step that broke it."""
        buffer, self._held = self._held + text, ""
        committed: list[str] = []
        begin = at = 0
        while at < len(buffer) and not (self.done or self.failed):
            end = self._step(buffer, at)
            if end is None:
                self._held = buffer[at:]
                break
            if self._is_lost:
                committed += [buffer[begin:at], "null"]
                begin = end
                self._is_lost = False
            self.failed = end == at
            at = end
        committed.append(buffer[begin:at])
        return self._spelled("".join(committed)), "" if self._held else buffer[at:]

    @property
    def in_string(self) -> bool:
        """The next character belongs to a string or a key."""
        return self._at in (_At.IN_KEY, _At.IN_STRING)

    def completion(self) -> str:
        """For an object that is not ``done``: what makes its committed text valid JSON with null for every member begun.

        JSON readers take the last of equal keys (strict ones refuse them), so no client runs a call with half of its arguments.
        """
        members = ",".join(f"{self._spelled(key)}:null" for key in self._keys)
        if len(self._open) == 1 and self._at is _At.KEY:
            return members + "}"
        ends = _COMPLETIONS.get(self._at, "") + "".join(_CLOSERS[opener] for opener in reversed(self._open[1:]))
        return ends + (f",{members}" if members else "") + "}"

    def _step(self, text: str, at: int) -> int | None:
        """Where the next step ends; None if that is not known yet; ``at`` itself if the text cannot go on like this."""
        if self._at in (_At.IN_KEY, _At.IN_STRING):
            return self._in_string(text, at)
        char = text[at]
        if char in BLANK:
            return _match_end(_BLANKS, text, at)
        if char in _MARKS:
            return at + 1 if self._mark(char) else at
        return self._scalar(text, at)

    def _in_string(self, text: str, at: int) -> int | None:
        end = _match_end(self._characters, text, at)
        if end > at:
            self._note_key(text[at:end])
            return end
        if text[at] == '"':
            self._note_key('"')
            self._end_string()
            return at + 1
        return None if text[at] == "\\" and len(text) - at < ESCAPE_LENGTH else at

    def _end_string(self) -> None:
        if self._at is _At.IN_STRING:
            self._end_value()
            return
        self._at = _At.COLON
        if len(self._open) == 1:
            self._keys.append("".join(self._key))
            self._key.clear()

    def _note_key(self, text: str) -> None:
        if self._at is _At.IN_KEY and len(self._open) == 1:
            self._key.append(text)

    def _mark(self, char: str) -> bool:
        """Take one of ``{}[]:,"``; False if it may not stand here."""
        if char == '"':
            return self._begin_string()
        if char in _CLOSERS:
            return self._begin_container(char)
        if char == ":":
            return self._move({_At.COLON: _At.VALUE})
        if char == ",":
            return self._move({_At.AFTER: _At.KEY if self._open[-1:] == ["{"] else _At.VALUE})
        return self._end_container(char)

    def _move(self, moves: dict[_At, _At]) -> bool:
        if self._at not in moves:
            return False
        self._at = moves[self._at]
        return True

    def _begin_string(self) -> bool:
        moved = self._move(
            {
                _At.VALUE: _At.IN_STRING,
                _At.FIRST_ITEM: _At.IN_STRING,
                _At.FIRST_KEY: _At.IN_KEY,
                _At.KEY: _At.IN_KEY,
            }
        )
        self._note_key('"')
        return moved

    def _begin_container(self, opener: str) -> bool:
        inside = _At.FIRST_KEY if opener == "{" else _At.FIRST_ITEM
        if len(self._open) == MAX_DEPTH or not self._move({_At.VALUE: inside, _At.FIRST_ITEM: inside}):
            return False
        self._open.append(opener)
        return True

    def _end_container(self, closer: str) -> bool:
        empty = _At.FIRST_KEY if closer == "}" else _At.FIRST_ITEM
        if self._at not in (empty, _At.AFTER) or not self._open or _CLOSERS[self._open[-1]] != closer:
            return False
        self._open.pop()
        self._end_value()
        return True

    def _scalar(self, text: str, at: int) -> int | None:
        """A number or a literal; complete when another character follows."""
        end = _match_end(_SCALAR, text, at)
        if end - at > MAX_SCALAR:
            return at
        if end == len(text):
            return None
        scalar = text[at:end]
        is_number = _NUMBER.fullmatch(scalar) is not None
        if self._at not in (_At.VALUE, _At.FIRST_ITEM) or not (is_number or scalar in _LITERALS):
            return at
        self._is_lost = is_number and math.isinf(float(scalar))
        self.lost_number = self.lost_number or self._is_lost
        self._end_value()
        return end

    def _end_value(self) -> None:
        self._at = _At.AFTER
        self.done = not self._open


def parse_json(text: str) -> Any:
    """The value that ``text`` is, with white space around it. Raises: ValueError."""
    scanner = JsonScanner()
    _, rest = scanner.feed(text + "\n")  # the newline completes a number
    if not scanner.done or scanner.lost_number or rest.strip(BLANK):
        raise ValueError("not a JSON value")
    return read_json(text)


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at
