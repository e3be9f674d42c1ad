"""Writes grammars in llguidance's variant of Lark (github.com/guidance-ai/llguidance, docs/syntax.md). Pure.

An expression is a piece of the right side of a rule. Structure tokens are named by id, ``<[151657]>``: the same letters in text are
other tokens, and no such token can come where the grammar does not name it. A marker that is no token of the vocabulary is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

ANY_TEXT = "/(?s:.*)/"

JSON_BLANKS = r"[ \n\r\t]{1,32}"
"""Blanks wherever JSON allows them, but not for ever: a small model would go on writing them."""


class Lark:
    """One grammar in the making. ``tokens``: text of a structure token to its id."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = tokens
        self._split = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)")
        self._lines: list[str] = []

    def text(self, start: str) -> str:
        """The grammar whose start is the expression ``start``."""
        return "\n".join([f"start: {start}", *self._lines, ""])

    def rule(self, expression: str) -> str:
        """A rule of its own."""
        return self._define("r", expression)

    def literal(self, text: str) -> str:
        """Exactly ``text``, its structure tokens as such; nothing at all if it is empty."""
        parts, at = [], 0
        for found in self._split.finditer(text):
            parts += [_quoted(text[at : found.start()]), f"<[{self._tokens[found.group()]}]>"]
            at = found.end()
        return " ".join(part for part in (*parts, _quoted(text[at:])) if part)

    def pattern(self, regex: str) -> str:
        """Text that matches ``regex``, which has no slash in it."""
        return self._define("T", f"/{regex}/")

    def json(self, schema: Mapping[str, Any], *, lenient: bool = False) -> str:
        """JSON that follows ``schema``; ``lenient`` passes over keywords that llguidance does not know."""
        options = {"whitespace_pattern": JSON_BLANKS, "lenient": lenient}
        return self._define("r", f"%json {json.dumps({**schema, 'x-guidance': options})}")

    def text_without(self, marker: str) -> str:
        """Any text, also none, in which ``marker`` does not stand."""
        spelled = re.escape(marker).replace("/", r"\/")
        return self._define("T", f"{ANY_TEXT} & ~/(?s:.*){spelled}(?s:.*)/")

    def up_to(self, marker: str) -> str:
        """Any text up to the first ``marker``, and the marker."""
        if marker in self._tokens:
            return f"{self.text_without(marker)} {self.literal(marker)}"
        return self._define("r", ANY_TEXT, f"[suffix={_quoted(marker)}]")

    def _define(self, kind: str, expression: str, options: str = "") -> str:
        """Terminals have names in capitals."""
        name = f"{kind}{len(self._lines)}"
        self._lines.append(f"{name}{options}: {expression}")
        return name


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
