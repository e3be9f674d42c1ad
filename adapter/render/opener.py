"""The generation prompt: where it begins in a rendered prompt. It is scaffold, neither written by a client nor sampled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from adapter.errors import BadRequest
from adapter.render.encoding import Encoder
from adapter.render.text import PromptText, RenderOptions
from adapter.types import Message
from engine.types import Ids

_USER: Message = {"role": "user", "content": "x"}
_KEPT = 64
"""Sets of template variables whose generation prompt is remembered; a server sees a handful."""
_LONGEST = 1000
"""Characters of a set that is worth remembering. Clients choose them, so the memory is bounded."""


class GenerationPrompts:
    """The generation prompts of one model. Safe to call from several threads."""

    def __init__(self, text: PromptText, encoder: Encoder) -> None:
        self._text = text
        self._encoder = encoder
        self._remembered = lru_cache(maxsize=_KEPT)(self._learn)

    def start(self, variables: Mapping[str, Any], rendered: str, ids: Ids) -> int:
        """Where in ``ids``, the encoding of ``rendered``, the generation prompt begins; their number if it can't be told."""
        try:
            key = json.dumps(dict(variables), sort_keys=True)
        except (RecursionError, TypeError, ValueError):
            return int(ids.size)
        text, own = self._remembered(key) if len(key) <= _LONGEST else self._learn(key)
        if not text or not rendered.endswith(text):
            return int(ids.size)
        return int(ids.size) - common_prefix(ids[::-1], own[::-1])

    def _learn(self, variables: str) -> tuple[str, Ids]:
        """Text and ids of what is added to a user's message; empty if that can't be told."""
        options = RenderOptions((), json.loads(variables))
        marks = self._text.marks((), options)
        try:
            closed, opened = (
                self._text.render([_USER], RenderOptions((), options.variables, add), marks) for add in (False, True)
            )
        except BadRequest:
            return "", np.zeros(0, np.int32)
        opener = marks.remove(opened.removeprefix(closed)) if opened.startswith(closed) else ""
        return opener, self._encoder.encode(opener, at_start=False)


def common_prefix(left: Ids, right: Ids) -> int:
    """How many ids at the start are the same."""
    size = min(left.size, right.size)
    differs = np.flatnonzero(left[:size] != right[:size])
    return int(differs[0]) if differs.size else int(size)
