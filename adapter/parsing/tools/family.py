"""What the pipeline has to know of a family of tool-call formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from adapter.parsing.base import ReplyContext, ReplyParser, ToolParser


@dataclass(frozen=True, slots=True)
class ToolFamily:
    """A family whose replies have visible text and calls, perhaps behind reasoning that another parser takes away."""

    parser: Callable[[ReplyContext], ToolParser]
    """Makes the parser of one reply."""
    markers: tuple[str, ...] = ()
    """All structure tokens of the format. Where the vocabulary has one, the parser is given its stand-in. A token that ends replies
    and is listed here is given to the parser too."""
    shows_end_token: bool = False
    """The text is passed on exactly as decoded, the token that ended the reply included."""
    call_tags: tuple[str, str] | None = None
    """The markers that open and close a call, or all calls of a reply, for calls in reasoning that is never closed
    (``adapter.parsing.unclosed``)."""
    closers: tuple[str, ...] = ()
    """What may follow a complete call as a part of it, in this order, each or not: so far goes a reply that holds its last call.

    If left out, the closing one of ``call_tags``."""

    def __post_init__(self) -> None:
        if self.call_tags is not None and not self.closers:
            object.__setattr__(self, "closers", self.call_tags[1:])


@dataclass(frozen=True, slots=True)
class WholeReplyFamily:
    """A family whose parser reads the reasoning too; no reasoning parser runs, whatever is configured."""

    parser: Callable[[ReplyContext], ReplyParser]
    markers: tuple[str, ...] = ()
    """As in ``ToolFamily``."""
    shows_end_token: bool = False
    """As in ``ToolFamily``."""
    closers: tuple[str, ...] = ()
    """As in ``ToolFamily``."""
