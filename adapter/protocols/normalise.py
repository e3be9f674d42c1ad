"""Normalisation: volatile text of a request that would break a prefix without telling the model anything.

``RULES`` is the whole list. A rule never takes out what the model could use, and what it took out is kept with the request
(``ChatRequest.normalised``) and so in the record. Rules that are not optional describe the neutral form itself: it has no place for
what they leave out, so there is nothing to keep.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from adapter.protocols.reading import Fields
from adapter.types import Normalised

_BILLING_HEADER = re.compile(r"x-anthropic-billing-header:[^\n]*\n*")


class RuleName(StrEnum):
    """The rules, by the name under which the record lists them."""

    BILLING_HEADER = "anthropic-billing-header"
    RESULT_ORDER = "tool-result-order"
    RESULT_REPEAT = "tool-result-repeat"
    CACHE_MARKERS = "cache-markers"
    CONTENT_FORM = "content-form"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, for people. ``optional``: it can be switched off by name."""

    name: RuleName
    protocol: str
    matches: str
    reason: str
    optional: bool


RULES: tuple[Rule, ...] = (
    Rule(
        RuleName.BILLING_HEADER,
        protocol="any",
        matches="a system text's first line that begins with x-anthropic-billing-header:, which is left out",
        reason="Claude Code hashes the conversation's first prompt into it: no two conversations would share a single token",
        optional=True,
    ),
    Rule(
        RuleName.RESULT_ORDER,
        protocol="any",
        matches="results of parallel tool calls in another order than the calls, which are put into the calls' order",
        reason="clients send them as they complete; chat templates carry no call ids, so order tells the model which is which",
        optional=True,
    ),
    Rule(
        RuleName.RESULT_REPEAT,
        protocol="any",
        matches="a tool result that its call already has, word for word, among the results after the same reply; it is left out",
        reason="gemini-cli sends every result of the conversation twice when it resumes one",
        optional=True,
    ),
    Rule(
        RuleName.CACHE_MARKERS,
        protocol="anthropic",
        matches="cache_control on a block, a tool or a message, which neutral messages do not have",
        reason="the marker of the last message moves on with every turn",
        optional=False,
    ),
    Rule(
        RuleName.CONTENT_FORM,
        protocol="any",
        matches="content as a string or as text blocks, empty blocks included, which is one text in neutral messages",
        reason="clients write the same message in both forms from one turn to the next",
        optional=False,
    ),
)


class Normaliser:
    """Applies the rules to one request; ``taken`` is what they changed, as it came."""

    def __init__(self, without: Collection[str] = ()) -> None:
        """``without``: names of optional rules to leave out. Raises: ValueError for any other name."""
        optional = {rule.name for rule in RULES if rule.optional}
        unknown = set(without) - optional
        if unknown:
            raise ValueError(f"no optional rule is called {min(unknown)!r}; there are {', '.join(sorted(optional))}")
        self.taken: list[Normalised] = []
        self._active = optional - set(without)

    def system_text(self, text: str, holder: Fields, name: str) -> str:
        """What the model reads of a system text that stands in the member ``name`` of ``holder``."""
        header = _BILLING_HEADER.match(text) if RuleName.BILLING_HEADER in self._active else None
        if header is None:
            return text
        self.taken.append(Normalised(RuleName.BILLING_HEADER, holder.at(name), header.group()))
        return text[header.end() :]

    def leaves_out_repeat(self, text: str, result: Fields) -> bool:
        """Whether to leave out ``result``, which says again what its call's result said."""
        if RuleName.RESULT_REPEAT not in self._active:
            return False
        self.taken.append(Normalised(RuleName.RESULT_REPEAT, result.path, text))
        return True

    def result_order(self, calls: Sequence[tuple[int, str]], first: Fields) -> list[int] | None:
        """How to order results; None if they stand right.

        ``calls``: for each result the number of its call in the conversation, and its id. ``first`` is the first result.
        """
        order = sorted(range(len(calls)), key=lambda index: calls[index][0])
        if RuleName.RESULT_ORDER not in self._active or order == list(range(len(calls))):
            return None
        came = " ".join(call_id for _, call_id in calls)
        self.taken.append(Normalised(RuleName.RESULT_ORDER, first.path, came))
        return order
