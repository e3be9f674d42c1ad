"""Writes grammars in llguidance's variant of Lark (github.com/guidance-ai/llguidance, docs/syntax.md). Pure.

An expression is a piece of the right side of a rule. Structure tokens are named by id, ``<[151657]>``: the same letters in text are
other tokens, and no such token can come where the grammar does not name it. A marker that is no token of the vocabulary is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

ANY_TEXT = "(?s:.*)"
"""As a regular expression; Lark has slashes around one."""

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

    def text_without(self, *markers: str) -> str:
        """Any text, also none, in which no marker stands."""
        return self._terminal(ANY_TEXT, markers)

    def up_to(self, ending: str, without: Sequence[str] = ()) -> str:
        """Any text up to the first ``ending``, and the ending; ``without`` does not stand in the text either."""
        token = self._split.search(ending)
        if token is None:
            body = self.text_without(*without) if without else f"/{ANY_TEXT}/"
            return self._define("r", body, f"[suffix={_quoted(ending)}]")
        # The token tells where the text is over, so the text may hold what stands before it in the ending.
        text = self._terminal(ANY_TEXT + _escaped(ending[: token.start()]), (token.group(), *without))
        return f"{text} {self.literal(ending[token.start() :])}"

    def _terminal(self, regex: str, without: Sequence[str]) -> str:
        excluded = (f"~/{ANY_TEXT}{_escaped(marker)}{ANY_TEXT}/" for marker in without)
        return self._define("T", " & ".join([f"/{regex}/", *excluded]))

    def _define(self, kind: str, expression: str, options: str = "") -> str:
        """Terminals have names in capitals."""
        name = f"{kind}{len(self._lines)}"
        self._lines.append(f"{name}{options}: {expression}")
        return name


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/")
