"""A reply that goes on from a beginning which its client has already: only what is new is given to it.

The beginning is read by the same parser as the rest, so that the rest is understood as what it is: in the reasoning, behind it, in
a line of text. A parser holds back what the next character may change (a newline that may belong to a call, half of a tag). What
the client has of that is taken out of the events when the parser lets go of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from adapter.types import ParsedModelOutput, ReasoningDelta, ReplyEvent, TextDelta


class Beginning:
    """``read`` is what the parser has shown of the beginning, ``given`` what it would show if nothing followed."""

    def __init__(self, read: ParsedModelOutput, given: ParsedModelOutput) -> None:
        self._given = given
        self._text = given.text[len(read.text) :]
        self._reasoning = given.reasoning[len(read.reasoning) :]

    def without(self, events: Iterable[ReplyEvent]) -> list[ReplyEvent]:
        """The events of the rest, in order, without what is held of the beginning."""
        return [kept for event in events if (kept := self._without(event)) is not None]

    def rest_of(self, output: ParsedModelOutput) -> ParsedModelOutput:
        """What is new in ``output``, the whole reply."""
        return replace(
            output,
            reasoning=output.reasoning[_shared(self._given.reasoning, output.reasoning) :],
            text=output.text[_shared(self._given.text, output.text) :],
            tool_uses=output.tool_uses[len(self._given.tool_uses) :],
        )

    def _without(self, event: ReplyEvent) -> ReplyEvent | None:
        match event:
            case TextDelta(text):
                new, self._text = _behind(self._text, text)
                return TextDelta(new) if new else None
            case ReasoningDelta(text):
                new, self._reasoning = _behind(self._reasoning, text)
                return ReasoningDelta(new) if new else None
            case _:
                self._text = self._reasoning = ""
                return event


def _shared(left: str, right: str) -> int:
    """Length of the common prefix."""
    pairs = zip(left, right, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right)))


def _behind(held: str, text: str) -> tuple[str, str]:
    """``text`` without what it shares with ``held``, and what of ``held`` is still to come."""
    shared = _shared(held, text)
    return text[shared:], held[shared:] if shared == len(text) else ""
