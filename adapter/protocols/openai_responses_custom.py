"""The input of a custom tool as the model writes it: the one string in the arguments that it was shown, a JSON object.

    fragments of ``{"input": "..."}``  ──►  the string's text, as far as it is certain

Arguments of another shape give no text here; the whole call tells what to do with them (``openai_responses_reply.custom_input``).
"""

from __future__ import annotations

import json
import re
from enum import Enum, auto

from adapter.protocols.openai_responses_tools import CUSTOM_MEMBER

_HEAD = re.compile(rf'\s*\{{\s*"{CUSTOM_MEMBER}"\s*:\s*"')
_LONGEST_HEAD = 64
"""Characters, blanks included; what has not begun the string by then is of another shape."""

_CHARACTERS = re.compile(
    r'(?:[^"\\]++|\\(?:[^u]|u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|u(?![dD][89abAB])[0-9a-fA-F]{4}))*'
)
"""Whole characters of a string; the two halves of a surrogate pair are one."""


class _At(Enum):
    HEAD = auto()
    STRING = auto()
    END = auto()


class CustomInput:
    """Fed with the fragments of one call's arguments."""

    def __init__(self) -> None:
        self._at = _At.HEAD
        self._held = ""

    def feed(self, fragment: str) -> str:
        """The text that ``fragment`` makes certain."""
        self._held += fragment
        if self._at is _At.HEAD:
            self._find_string()
        if self._at is _At.STRING:
            return self._read_string()
        return ""

    def _find_string(self) -> None:
        head = _HEAD.match(self._held)
        if head is not None:
            self._at, self._held = _At.STRING, self._held[head.end() :]
        elif len(self._held) > _LONGEST_HEAD:
            self._at, self._held = _At.END, ""

    def _read_string(self) -> str:
        characters = _CHARACTERS.match(self._held)
        assert characters is not None
        rest = self._held[characters.end() :]
        self._at, self._held = (_At.END, "") if rest.startswith('"') else (_At.STRING, rest)
        text: str = json.loads(f'"{characters.group()}"', strict=False)
        return text
