"""Which tokens are control tokens, and how text from users is kept from spelling one.

Control tokens structure a prompt: ``<|im_end|>``, ``<tool_call>``, ``<think>``. A tokenizer reads them out of any text, so a user
who writes ``<|im_end|>`` would end his own message. They are the tokens flagged special, those of the form ``<|...|>``, a few by
name, and any other added token in brackets that the model's chat template spells itself. Added tokens that are plain vocabulary
(Gemma's runs of white space and HTML tags) are none.

A string from a request that spells a control token is rendered with a *mark* inside each occurrence: a noncharacter that occurs
nowhere in the request. The rendered text is split at the control tokens without a mark, which are the template's own; then the
marks go. Templates see the marked text, so they do not take it for their own tags either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from tokenizers import AddedToken

from adapter.errors import BadRequest

NAMED = frozenset(
    {
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
        *("<tools>", "</tools>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
        *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[THINK]", "[/THINK]"),
    }
)
"""Structure tokens that some tokenizers do not flag as special and some templates only write by a variable."""

_PIPED = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)
_BRACKETED = re.compile(r"[<\[].*[>\]]", re.DOTALL)
_NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
"""Unicode 23.7: not for interchange. A request may still hold them all (a test file of all characters, say)."""
_PRIVATE = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_TRIES = 64
"""Private characters that are looked for in escaped form too. A bound, since a request could hold any number of escapes."""


def is_control(token: AddedToken, template_source: str) -> bool:
    text = str(token.content)
    if not text.strip():
        return False
    if token.special or text in NAMED or _PIPED.fullmatch(text):
        return True
    return _BRACKETED.fullmatch(text) is not None and text in template_source


def longest_first(texts: Iterable[str]) -> re.Pattern[str]:
    """Any of ``texts``; of several that begin at one place the longest. Without texts it matches nothing."""
    ordered = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) if ordered else r"(?!)")


@dataclass(frozen=True, slots=True)
class Marks:
    """Two characters that the marked strings do not hold, neither as such nor escaped as in JSON."""

    mask: str
    """Stands inside what would spell a control token."""
    edge: str
    """Marks a place that is to be found again in the rendered text."""

    def remove(self, text: str) -> str:
        for mark in (self.mask, self.edge):
            text = text.replace(mark, "").replace(escaped(mark), "")
        return text

    def after_edge(self, text: str) -> int | None:
        """Where the last edge in ``text`` ends."""
        ends = [text.rfind(form) + len(form) for form in (self.edge, escaped(self.edge)) if form in text]
        return max(ends, default=None)


@lru_cache(maxsize=128)
def escaped(character: str) -> str:
    r"""As a template writes it that asks ``tojson`` for ASCII: ``\ufdd0``."""
    return json.dumps(character)[1:-1]


def _free(candidates: Iterable[str], strings: Sequence[str]) -> list[str]:
    """The first two that no string holds, neither as such nor escaped."""
    free = (mark for mark in candidates if not any(mark in text or escaped(mark) in text for text in strings))
    return list(islice(free, 2))


class ControlTokens:
    """The control tokens of one model. ``ids`` maps the text of each to its id."""

    def __init__(self, added: Mapping[int, AddedToken], template_source: str) -> None:
        self.ids = {str(token.content): id_ for id_, token in added.items() if is_control(token, template_source)}
        self._pattern = longest_first(self.ids)

    def marks(self, *values: Any) -> Marks:
        """Marks for a request that consists of ``values``. Raises: BadRequest, if it leaves no character free."""
        strings = list(strings_of(values))
        free = _free(_NONCHARACTERS, strings)
        if len(free) < 2:
            used = set(chain.from_iterable(strings))
            free = _free(islice((mark for mark in map(chr, chain(*_PRIVATE)) if mark not in used), _TRIES), strings)
        if len(free) < 2:
            raise BadRequest("the request holds every private-use character there is", field="messages")
        return Marks(*free)

    def masked(self, value: Any, marks: Marks) -> Any:
        """``value`` (JSON) with a mask inside each control token that a string in it spells; itself if none does."""
        if not any(self._pattern.search(text) for text in strings_of(value)):
            return value
        return with_strings(value, lambda text: self._mask(text, marks.mask))

    def _mask(self, text: str, mask: str) -> str:
        while self._pattern.search(text):  # again: what remains of one may begin another
            text = self._pattern.sub(lambda found: found.group()[:1] + mask + found.group()[1:], text)
        return text


def strings_of(value: Any) -> Iterator[str]:
    """All strings in a JSON value, keys included."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, Sequence):
            pending.extend(item)


def with_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of a JSON value with every string changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {with_strings(key, change): with_strings(item, change) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [with_strings(item, change) for item in value]
    return value
