"""Why a turn stands where it does: one reason code per turn, and what differed in the messages that led there.

A turn's reason is the most notable of its path. ``Reason`` declares its members from the least to the most notable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Reason(StrEnum):
    """Reason codes, the least notable first."""

    NEW = "new"
    """Nothing that was generated is on the path."""
    EXACT = "exact"
    """Every replayed message equals its node."""
    HANDLE = "handle"
    """A replayed reply differs from what it was, but an id in it says which turn it is."""
    TOLERANT_THINKING = "tolerant:thinking"
    """A replayed reply lacks its thinking, or has it changed."""
    TOLERANT_WHITESPACE = "tolerant:whitespace"
    """White space around a text was changed, or a reply of nothing else left out."""
    TOLERANT_JSON = "tolerant:json"
    """Arguments of a call were written anew: another form of the same numbers or characters."""
    TOLERANT_ORDER = "tolerant:order"
    """The results of parallel calls came in another order."""
    TOLERANT_AMBIGUOUS = "tolerant:ambiguous"
    """Several turns are as much alike; the latest counts."""
    EXACT_AMBIGUOUS = "exact:ambiguous"
    """Several turns are equal; the latest counts."""
    INTERRUPTED = "interrupted"
    """The client replayed a part of a turn that was cut off; that part has become a turn."""
    FORK_THINKING = "fork:thinking"
    """The template renders earlier turns without their thinking."""
    FORK_TEMPLATE = "fork:template"
    """The template renders earlier turns in another way than they were sampled."""
    FORK_EDIT = "fork:edit"
    """The client changed what a reply said, or something before it."""
    FORK_SYSTEM = "fork:system"
    """The conversation is known, but under another system message."""
    FORK_OPTIONS = "fork:options"
    """The conversation is known, but under other template options."""
    FORK_TOOLS = "fork:tools"
    """The conversation is known, but with other tools."""
    FORK_MODEL = "fork:model"
    """The conversation is known, but under another model name."""
    FORK_UNVERIFIED_TEMPLATE = "fork:unverified-template"
    """The template failed its self-test, so the whole conversation was rendered anew."""


_NOTABILITY = {reason: place for place, reason in enumerate(Reason)}


class Difference(StrEnum):
    """How a replayed message differs from its node, though it is no edit."""

    THINKING = "thinking"
    WHITESPACE = "whitespace"
    JSON = "json"
    REPAIRED = "repaired"
    """The arguments of a malformed call came back as ``{}``."""
    ORDER = "order"
    DROPPED = "dropped"
    """The whole message is missing; it had nothing visible in it."""


_TOLERATED = {
    Difference.THINKING: Reason.TOLERANT_THINKING,
    Difference.WHITESPACE: Reason.TOLERANT_WHITESPACE,
    Difference.DROPPED: Reason.TOLERANT_WHITESPACE,
    Difference.JSON: Reason.TOLERANT_JSON,
    Difference.REPAIRED: Reason.TOLERANT_JSON,
    Difference.ORDER: Reason.TOLERANT_ORDER,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One message that was recognised though it differs from its node.

    ``index`` counts the request's messages; it is -1 for a reply that the client left out.
    """

    index: int
    by_handle: bool
    differences: tuple[Difference, ...]
    turn_index: int | None
    """The turn whose reply the message is, if it is one."""

    @property
    def reason(self) -> Reason:
        if self.by_handle:
            return Reason.HANDLE
        return most_notable(_TOLERATED[difference] for difference in self.differences)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "message": self.index,
            "reason": str(self.reason),
            "differences": [str(difference) for difference in self.differences],
            "turn_index": self.turn_index,
        }


def most_notable(reasons: Iterable[Reason]) -> Reason:
    """The one that a turn is given. ``EXACT`` if there are none."""
    return max(reasons, key=_NOTABILITY.__getitem__, default=Reason.EXACT)
