"""What every parser of a reply offers, sans I/O: decoded text in, neutral events out.

A parser is fed text in pieces of any size and gives the same reply whatever the pieces were; ``finish`` says that no more comes.
It holds back only what the next character may change. One file per family of models; a table gives it its name.

In a parser's input a marker of the format that is a token of the vocabulary is one stand-in (``adapter.parsing.markers``). A parser
asks ``ReplyContext.markers`` for the look of each marker that it knows. Text and reasoning may leave it with stand-ins in them;
``ReplyText`` spells them out. Names and arguments of calls may not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from adapter.parsing.markers import Markers
from adapter.types import ReasoningDelta, ReplyEvent, TextDelta, Tool

BLANK = " \t\r\n"
"""White space as JSON and the tool-call formats know it."""


class UnknownParser(ValueError):
    """No parser has this name; the message lists those that there are."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"unknown {kind} parser {name!r}; there are: {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class ReplyContext:
    """What the parsers of one reply are told about it."""

    tools: Sequence[Tool] = ()
    """The tools of the request."""
    markers: Markers = field(default_factory=Markers)
    reasoning_opened: bool = False
    """The prompt ends inside the reasoning."""
    prompt_tail: str = ""
    """The last characters of the prompt, with stand-ins, for a format in which the prompt opens more than the reasoning."""


class ReasoningParser(Protocol):
    """Splits reasoning from the text that the user is meant to see."""

    @property
    def inside(self) -> bool:
        """The next character belongs to the reasoning, as far as is known."""
        ...

    @property
    def settled(self) -> bool:
        """No more reasoning comes."""
        ...

    def feed(self, text: str) -> list[ReasoningDelta | TextDelta]: ...

    def finish(self) -> list[ReasoningDelta | TextDelta]: ...


class ToolParser(Protocol):
    """Splits tool calls from visible text."""

    ill_formed: bool
    """Some call so far was malformed."""

    def feed(self, text: str) -> list[ReplyEvent]: ...

    def finish(self) -> list[ReplyEvent]: ...


class ReplyParser(ToolParser, Protocol):
    """Reads a whole reply, reasoning included: for formats in which reasoning isn't one span before the rest."""

    @property
    def inside(self) -> bool:
        """As in ``ReasoningParser``."""
        ...

    @property
    def settled(self) -> bool:
        """As in ``ReasoningParser``."""
        ...


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
