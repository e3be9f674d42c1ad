"""Where a reply ends that may hold only so many calls: behind the last of them, with what closes it.

A call is complete with its last bracket, and markers that close it may follow. They are part of the reply, as a model that stops by
itself would have it; so is the token with which it stops. Anything else is not. What comes is known only by the tokens behind the
call, so the reply's end is found a few tokens later than where it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from adapter.parsing.base import BLANK
from adapter.types import ReplyEvent, ToolCallEnd


class CallLimit:
    """Fed token by token. ``closers``: what may close a call, in this order, each or not, as it looks in a parser's input."""

    def __init__(self, calls: int, closers: Sequence[str]) -> None:
        self.end: int | None = None
        """Tokens of the reply, as far as is known, once its last call is there."""
        self._missing = calls
        self._closers = list(closers)
        self._behind = ""
        """Text behind the call that is no complete closer yet."""

    def reached(self, text: str, events: Sequence[ReplyEvent], tokens: int) -> int | None:
        """``end``, once it is final. ``text`` and ``events`` are those of token number ``tokens``."""
        if self.end is not None:
            return None if self._closes(self._behind + text, tokens) else self.end
        self._missing -= sum(isinstance(event, ToolCallEnd) for event in events)
        if self._missing <= 0:
            self.end = tokens
            # Which part of this token is behind the call is not known: it is the longest that may be.
            any(self._closes(text[at:], tokens) for at in range(len(text)))
        return None

    def _closes(self, behind: str, tokens: int) -> bool:
        """Whether that text is nothing but closers, the last of them perhaps not complete. Moves on, if so."""
        rest, closers = behind.lstrip(BLANK), self._closers
        while (at := next((at for at, closer in enumerate(closers) if rest.startswith(closer)), None)) is not None:
            rest, closers = rest[len(closers[at]) :].lstrip(BLANK), closers[at + 1 :]
            self.end = tokens
        if rest and not any(closer.startswith(rest) for closer in closers):
            return False
        self._behind, self._closers = rest, closers
        return True
