"""Where the ids of replies and tool calls come from; tests put a fixed source in its place."""

from __future__ import annotations

import secrets
from typing import Protocol


class IdSource(Protocol):
    def new(self, prefix: str, length: int) -> str:
        """``prefix`` followed by ``length`` characters of ``[0-9a-f]``, new for all time."""
        ...


class ReplyIds(IdSource, Protocol):
    """A source of ids, and of sources for the ids inside one reply."""

    def for_turn(self, sid: str, turn: int) -> IdSource: ...

    def turn_of(self, sid: str, issued: str) -> int | None:
        """The turn of session ``sid`` for which an id was issued; None if it is not ours."""
        ...


class RandomIds:
    """The real source."""

    def new(self, prefix: str, length: int) -> str:
        return prefix + secrets.token_hex((length + 1) // 2)[:length]
