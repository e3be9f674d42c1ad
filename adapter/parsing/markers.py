"""Structure tokens as characters of their own, so that text which merely spells one is never taken for it.

Where a format's marker (``<tool_call>``, ``</think>``) is one token of the vocabulary, the detokenizer gives in its place one
*stand-in*: a lone surrogate, which no decoded text can hold. A parser is written in stand-ins and text alike: it asks ``Markers``
what a marker looks like in its input, and reads it with ordinary string functions. Where the vocabulary has no such token, the
marker looks like itself, and text is all there is to go by.

What a parser shows may hold stand-ins of markers that meant nothing where they stood; ``spelled`` turns them into their text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tokenizers import Tokenizer

FIRST_STAND_IN = 0xD800
MAX_STAND_INS = 0x800
"""The surrogates, U+D800 to U+DFFF."""


class Markers:
    """The markers of one vocabulary. Without one (``Markers()``) every marker looks like itself."""

    def __init__(self, ids: Mapping[str, int] = MappingProxyType({})) -> None:
        """``ids``: text of a marker to the token that it is."""
        if len(ids) > MAX_STAND_INS:
            raise ValueError(f"at most {MAX_STAND_INS} markers, not {len(ids)}")
        self._looks = {text: chr(FIRST_STAND_IN + n) for n, text in enumerate(ids)}
        self._texts = {ord(stand_in): text for text, stand_in in self._looks.items()}
        self._json = {stand_in: json.dumps(text, ensure_ascii=False)[1:-1] for stand_in, text in self._texts.items()}
        self.stand_ins: Mapping[int, str] = MappingProxyType({token: self._looks[text] for text, token in ids.items()})
        """Token id to the character that stands in for it."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, texts: Iterable[str]) -> Markers:
        """Those of ``texts`` that are one added token of the vocabulary get a stand-in."""
        added = {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items()}
        return cls({text: added[text] for text in dict.fromkeys(texts) if text in added})

    def look(self, text: str) -> str:
        """What the marker spelled ``text`` looks like in a parser's input; of a longer text, the markers in it."""
        if text in self._looks:
            return self._looks[text]
        for marker, look in self._looks.items():
            text = text.replace(marker, look)
        return text

    def spelled(self, text: str) -> str:
        """``text`` with every stand-in as its marker's text."""
        return text if text.isascii() else text.translate(self._texts)

    def spelled_in_json(self, text: str) -> str:
        """``spelled`` for a piece of JSON whose stand-ins are inside strings."""
        return text if text.isascii() else text.translate(self._json)
