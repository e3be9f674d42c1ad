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
    """``closers``: what may close a call, in this order, as it looks in a parser's input. Fed token by token."""

    def __init__(self, calls: int, closers: Sequence[str]) -> None:
        self.end: int | None = None
        """Tokens of the reply, as far as is known, once its last call is there."""
        self._missing = calls
        self._closers = list(closers)
        self._behind = ""
        """Text behind the call that is no complete closer yet."""

    def reached(self, text: str, events: Sequence[ReplyEvent], tokens: int) -> int | None:
        """``end``, once it is final. ``text`` and ``events`` are those of token number ``tokens``."""
        if self.end is None:
            self._missing -= sum(isinstance(event, ToolCallEnd) for event in events)
            if self._missing <= 0:
                self.end = tokens
            return None
        self._behind = (self._behind + text).lstrip(BLANK)
        while self._closers and self._behind.startswith(self._closers[0]):
            self._behind = self._behind[len(self._closers.pop(0)) :].lstrip(BLANK)
            self.end = tokens
        may_go_on = not self._behind or (self._closers and self._closers[0].startswith(self._behind))
        return None if may_go_on else self.end
