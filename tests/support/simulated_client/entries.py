"""What an agent remembers of its conversation, in its own terms. Every entry has a number; an edited entry has a new one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Head:
    """System prompt and tools; ``tools`` gives each tool's JSON schema by its name."""

    number: int
    system: str | None
    tools: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Said:
    """The user's words."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Reminder:
    """A system message that the program adds on its own."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. ``arguments`` is the JSON text as it came, if the protocol gives a text; else the JSON value."""

    call_id: str
    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class Thought:
    """A thinking block, or reasoning; ``signature`` where the protocol has one."""

    text: str
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model answered. ``turn`` is the server's number for it; None if the client has edited it.

    ``parts`` are texts, ``Thought`` and ``Call`` as they came.
    """

    number: int
    turn: int | None
    parts: Sequence[str | Thought | Call]

    @property
    def calls(self) -> list[Call]:
        return [part for part in self.parts if isinstance(part, Call)]


@dataclass(frozen=True, slots=True)
class Results:
    """What the tools answered: call id and text, in the order in which they completed. ``calls`` is the order of the calls."""

    number: int
    completed: Sequence[tuple[str, str]]
    calls: Sequence[str]


Entry = Said | Reminder | Reply | Results
