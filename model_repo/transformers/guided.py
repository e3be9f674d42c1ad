"""Guided decoding: the grammar of a request, compiled apart from the generation loop, says which tokens may be drawn.

llguidance (an Earley parser over a lazily built lexer; github.com/guidance-ai/llguidance) does both. Compiling a large schema
takes up to half a second, so it has a thread of its own; a mask takes some ten microseconds and is made on the loop. Both are
bounded by the library's own limits (``ParserLimits``): a grammar that is too large is refused, one that grows too complex on the
way fails its own request.

A token that the tokenizer knows as special, or that is spelled like a tag (``<tool_call>``), comes only where the grammar names it;
the same letters in text are other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from torch import Tensor

from .settings import SettingsError

CACHED_GRAMMARS = 32
"""Compiled grammars that are kept, the latest used ones."""

JSON_BLANKS = {"whitespace_pattern": r"[ \n\r\t]{1,32}"}
"""Blanks wherever JSON allows them, but not for ever: a small model would go on writing them."""

MAX_REASON = 300
"""Characters of the compiler's message."""


class GuideValues(Protocol):
    """``common.guides.Guide``."""

    @property
    def kind(self) -> str: ...
    @property
    def text(self) -> str: ...


class GuideRefused(ValueError):
    """The grammar cannot be compiled; the message says why."""


class GuideState:
    """Where in its grammar one reply stands. ``mask`` is bool [V]: the tokens that go on with it."""

    def __init__(self, matcher: LLMatcher, own_ends: Sequence[int], vocab_size: int, device: torch.device) -> None:
        self._matcher = matcher
        self._own_ends = list(own_ends)
        self._vocab_size = vocab_size
        self._device = device
        self.error = ""
        """Why there is no next token, once the matcher has given up."""
        self._advance()

    @property
    def complete(self) -> bool:
        """The reply may end here."""
        return self._complete

    @property
    def over(self) -> bool:
        """Nothing but an end may follow."""
        return self._over

    def allowed(self, end_ids: Tensor | None) -> Tensor:
        """What may be drawn, bool [V]. ``end_ids``, int64 [n], are the tokens that may end the reply; they come where it is
        complete."""
        if end_ids is None or not self._complete:
            return self._mask
        return self._mask.index_fill(0, end_ids, True)

    def accept(self, token: int) -> None:
        """``token`` was drawn, and does not end the reply."""
        self._matcher.consume_token(token)
        self._advance()

    def _advance(self) -> None:
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        allowed[self._own_ends] = False  # which tokens end a reply is the request's to say
        self.error = _reason(self._matcher.get_error())
        self._complete = self._matcher.is_accepting()
        self._over = not allowed.any()
        self._mask = torch.from_numpy(allowed).to(self._device)


class GuideCompiler:
    """Compiles grammars over one vocabulary, in its own thread."""

    def __init__(self, tokenizer_file: Path, vocab_size: int, device: torch.device) -> None:
        """Raises: SettingsError, if the tokenizer cannot be read."""
        try:
            self._tokenizer = LLTokenizer(tokenizer_file.read_text(encoding="utf-8"), n_vocab=vocab_size)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"parameter guided_decoding: {tokenizer_file} is not usable ({error}); none does without it"
            ) from error
        self._vocab_size = vocab_size
        self._device = device
        self._matcher = lru_cache(CACHED_GRAMMARS)(self._new_matcher)
        self._thread = ThreadPoolExecutor(1, "guide-compiler")

    def compile(self, guide: GuideValues, done: Callable[[Future[GuideState]], None]) -> None:
        """``done`` is called from the compiler's thread. The future has a ``GuideRefused`` where the grammar is none, and is
        cancelled when the compiler was closed before."""
        self._thread.submit(self._compile, guide).add_done_callback(done)

    def close(self) -> None:
        """Drop what waits, and wait for what runs."""
        self._thread.shutdown(cancel_futures=True)

    def _compile(self, guide: GuideValues) -> GuideState:
        matcher = self._matcher(guide.kind, guide.text).deep_copy()
        state = GuideState(matcher, self._tokenizer.eos_tokens, self._vocab_size, self._device)
        if state.over:
            raise GuideRefused("it lets nothing be written")
        if state.error:
            raise GuideRefused(state.error)
        return state

    def _new_matcher(self, kind: str, text: str) -> LLMatcher:
        try:
            grammar = _GRAMMARS[kind](text)
        except ValueError as error:
            raise GuideRefused(_reason(str(error))) from None
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise GuideRefused(_reason(matcher.get_error()))
        return matcher


def _reason(message: str) -> str:
    """The first line: what follows shows the grammar and the state of the matcher."""
    return message.partition("\n")[0][:MAX_REASON]


def _json_schema(text: str) -> str:
    grammar: str = LLMatcher.grammar_from_json_schema(text, defaults=JSON_BLANKS)
    return grammar


_GRAMMARS: Mapping[str, Callable[[str], Any]] = {
    "json": lambda text: _json_schema('{"type": "object"}'),
    "json_schema": _json_schema,
    "regex": LLMatcher.grammar_from_regex,
    "lark": LLMatcher.grammar_from_lark,
}
