"""Whether the text of a guide is a grammar at all, found out before it is sent. llguidance judges, and needs no model for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from llguidance import LLMatcher, LLTokenizer

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
    """Why ``guide`` cannot be compiled, or lets nothing be written; None if neither, or if only the engine knows its kind.

    Takes up to a second for a large schema, and lets other threads run meanwhile.
    """
    make = _GRAMMARS.get(guide.kind)
    if make is None:
        return None
    try:
        grammar = make(guide.text)
        is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    except ValueError as error:
        return _reason(str(error))
    if is_error:
        return _reason(messages[0])
    # A grammar in Lark names tokens by ids that only the model's vocabulary has.
    return None if guide.kind is GuideKind.LARK else _emptiness(grammar)


def _emptiness(grammar: str) -> str | None:
    """The first character that the grammar allows is looked for in a vocabulary of bytes."""
    characters = LLTokenizer("byte")
    matcher = LLMatcher(characters, grammar, log_level=0)
    allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
    allowed[characters.eos_tokens] = 0
    return None if allowed.any() else "it lets nothing be written"


def _reason(message: str) -> str:
    """The first line: what follows shows the grammar."""
    return message.partition("\n")[0][:MAX_REASON]
