"""What every parser of a reply offers, sans I/O: decoded text in, neutral events out.

A parser is fed text in pieces of any size and gives the same reply whatever the pieces were; ``finish`` says that no more comes.
It holds back only what the next character may change. One file per family of models; a table gives it its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from adapter.types import ReasoningDelta, ReplyEvent, TextDelta

BLANK = " \t\r\n"
"""White space as JSON and the tool-call formats know it."""


class UnknownParser(ValueError):
    """No parser has this name; the message lists those that there are."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"unknown {kind} parser {name!r}; there are: {', '.join(known)}")


class ReasoningParser(Protocol):
    """Splits reasoning from the text that the user is meant to see."""

    inside: bool
    """The next character belongs to the reasoning, as far as is known."""
    settled: bool
    """All that follows is visible text."""

    def feed(self, text: str) -> list[ReasoningDelta | TextDelta]: ...

    def finish(self) -> list[ReasoningDelta | TextDelta]: ...


class ToolParser(Protocol):
    """Splits tool calls from visible text."""

    ill_formed: bool
    """Some call so far was malformed."""

    def feed(self, text: str) -> list[ReplyEvent]: ...

    def finish(self) -> list[ReplyEvent]: ...


def held_suffix(text: str, *markers: str) -> int:
    """Length of the longest end of ``text`` that may turn out to be the beginning of a marker (all of one is not held).

    Steps are bounded by the markers' lengths, not by the text's.
    """
    return max(_held_for(text, marker) for marker in markers)


def _held_for(text: str, marker: str) -> int:
    at = text.find(marker[0], max(0, len(text) - len(marker) + 1))
    while at != -1 and not marker.startswith(text[at:]):
        at = text.find(marker[0], at + 1)
    return len(text) - at if at != -1 else 0
