"""Whether the text of a guide is a grammar at all, found out before it is sent. llguidance judges, and needs no model for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from llguidance import LLMatcher

from engine.types import Guide, GuideKind

MAX_REASON = 300
"""Characters of the compiler's message."""

_GRAMMARS: Mapping[GuideKind, Callable[[str], str]] = MappingProxyType(
    {
        GuideKind.JSON_SCHEMA: LLMatcher.grammar_from_json_schema,
        GuideKind.REGEX: LLMatcher.grammar_from_regex,
        GuideKind.LARK: LLMatcher.grammar_from_lark,
    }
)
"""The kinds that can be judged."""


def grammar_fault(guide: Guide) -> str | None:
    """Why ``guide`` cannot be compiled; None if it can, or is of a kind that only the engine knows.

    Takes up to half a second for a large schema, and lets other threads run meanwhile.
    """
    make = _GRAMMARS.get(guide.kind)
    if make is None:
        return None
    try:
        is_error, messages = LLMatcher.validate_grammar_with_warnings(make(guide.text))
    except ValueError as error:
        return str(error)[:MAX_REASON]
    return messages[0][:MAX_REASON] if is_error else None
