"""Rendered text to ids, so that control ids come from the chat template alone.

The text is split at its control tokens, which become their ids directly; the pieces between them are encoded by a second tokenizer
that knows no control token. It shares the vocabulary of the first, so it costs no memory. For text that spells no control token
outside the template the ids are those of the library's own ``encode``: at start both are compared on texts that put every control
token next to everything that has been seen to matter. Where they differ, whole texts are encoded by the library, and ``fault`` says
why; then a user's text can become control ids. A server has the second tokenizer replaced by a cheaper one (``render.fast``).
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import AddedToken, Tokenizer

from adapter.render.control import ControlTokens, Marks, longest_first
from adapter.render.fast import FastEncoder
from engine.types import Ids

_SPACE = re.compile(r"\s*")


class Piece(NamedTuple):
    """A control token, or what stands between two. White space that a token takes with it is in no piece."""

    text: str
    id: int | None
    """Of a control token; None for text."""
    start: int


class Encoder:
    """One tokenizer. Stateless once built; the GIL is released while it encodes."""

    def __init__(self, tokenizer: Tokenizer, control: ControlTokens) -> None:
        self.tokenizer = tokenizer
        self.control = control
        added = tokenizer.get_added_tokens_decoder()
        self._plain = _without_added_tokens(tokenizer)
        kept = [token for id_, token in added.items() if self._is_vocabulary(id_, token)]
        self._plain.add_tokens(kept)
        self._first = self._plain
        if (inner := _without_word_start(tokenizer.pre_tokenizer)) is not None:
            self._first = _without_added_tokens(tokenizer)
            self._first.add_tokens(kept)
            self._plain.pre_tokenizer = inner
        texts = {token.content for token in kept}
        self._atoms = {token.content: (id_, token) for id_, token in added.items() if token.content not in texts}
        self._split = longest_first(self._atoms)
        self._fast: FastEncoder | None = None
        self._described: str | None = None
        self.fault = self._check()
        """Why whole texts are encoded; ``None`` if control ids are safe."""

    def describe(self) -> str:
        """What ``speed_up`` reads. The first call holds up all threads for tenths of a second: make it before anybody is served."""
        if self._described is None:
            self._described = self._plain.to_str()
        return self._described

    def speed_up(self) -> str | None:
        """Change over to a cheaper tokenizer that gives the same ids; why not, if there is none. Takes seconds, in any thread."""
        if self.fault is not None:
            return self.fault
        try:
            self._fast = FastEncoder(self._plain, self.describe())
        except ValueError as error:
            return str(error)
        finally:
            self._described = None
        return None

    def encode(self, text: str, marks: Marks | None = None, *, at_start: bool = True) -> Ids:
        """int32 [N]. ``marks`` go before encoding. ``at_start`` is false for a text that goes on behind a control token.

        Lone surrogates, which no tokenizer takes, become U+FFFD.
        """
        text = _well_formed(text)
        if self.fault is not None:
            text = marks.remove(text) if marks else text
            return np.array(_encode(self.tokenizer, [text])[0], dtype=np.int32)
        return self._encode_split(text, marks, at_start)

    def pieces(self, text: str) -> Iterator[Piece]:
        """``text`` split at its control tokens, in order."""
        position = 0
        for found in self._split.finditer(text):
            id_, token = self._atoms[found.group()]
            if token.single_word and _in_word(text, found.start(), found.end()):
                continue
            before = text[position : found.start()]
            if token.lstrip:
                before = before.rstrip()
            if before:
                yield Piece(before, None, position)
            yield Piece(found.group(), id_, found.start())
            position = _skip_space(text, found.end()) if token.rstrip else found.end()
        if position < len(text):
            yield Piece(text[position:], None, position)

    def _encode_split(self, text: str, marks: Marks | None, at_start: bool) -> Ids:
        pieces = list(self.pieces(text))
        texts = [marks.remove(piece.text) if marks else piece.text for piece in pieces if piece.id is None]
        encoded = iter(self._encode_pieces(texts, at_start and bool(pieces) and pieces[0].id is None))
        parts = [next(encoded) if piece.id is None else (piece.id,) for piece in pieces]
        return np.concatenate([np.asarray(part, dtype=np.int32) for part in ((), *parts)])

    def _encode_pieces(self, texts: list[str], begins_text: bool) -> Sequence[Sequence[int] | Ids]:
        if begins_text and self._first is not self._plain:
            return [*_encode(self._first, texts[:1]), *self._encode_plain(texts[1:])]
        return self._encode_plain(texts)

    def _encode_plain(self, texts: list[str]) -> Sequence[Sequence[int] | Ids]:
        found = None if self._fast is None else self._fast.encode(texts)
        return _encode(self._plain, texts) if found is None else found

    def _is_vocabulary(self, id_: int, token: AddedToken) -> bool:
        return token.content not in self.control.ids and self._plain.token_to_id(token.content) == id_

    def _check(self) -> str | None:
        tokens = list(self._atoms)
        texts = [_check_text(token, other) for token, other in zip(tokens, tokens[1:] + tokens[:1], strict=True)]
        for text, expected in zip(texts, _encode(self.tokenizer, texts), strict=True):
            ours = self._encode_split(text, None, at_start=True).tolist()
            if ours != expected:
                return f"the pieces between control tokens encode differently from the whole text: {text!r}"
        control = set(self.control.ids.values())
        for text, ids in zip(self.control.ids, _encode(self._plain, list(self.control.ids)), strict=True):
            if control.intersection(ids):
                return f"the vocabulary itself makes the control token {text!r} from its letters"
        return None


def _check_text(token: str, other: str) -> str:
    return (
        f"{token}user\nHello  world{other}\n{token}{other} x {token}\n\n{other}\t y\r\n{token}你好,世界。{other}👩‍💻 e\u0301 "
        f'{token}\u00a0{other}   {token}1234567\'ll{other}{{"a": [1, 2]}}\n{token}'
    )


def _without_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    plain = Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        plain.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        plain.pre_tokenizer = tokenizer.pre_tokenizer
    return plain


def _without_word_start(pre_tokenizer: Any) -> Any:
    """A copy of a pre-tokenizer that puts a word start before the first piece of a text, which doesn't; else None."""
    if pre_tokenizer is None:
        return None
    state = json.loads(pre_tokenizer.__getstate__())
    if not _set_never(state):
        return None
    copy = pickle.loads(pickle.dumps(pre_tokenizer))
    copy.__setstate__(json.dumps(state).encode())
    return copy


def _set_never(state: Any) -> bool:
    """Change every ``prepend_scheme`` "first" in a pre-tokenizer's JSON; whether there was one."""
    if isinstance(state, list):
        return sum(_set_never(item) for item in state) > 0
    if not isinstance(state, dict):
        return False
    changed = sum(_set_never(item) for item in state.values()) > 0
    if state.get("prepend_scheme") != "first":
        return changed
    state["prepend_scheme"] = "never"
    return True


def _encode(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    # encode() would hold the GIL for the whole text; the batch call does not (0.2 s at 100k tokens).
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def _well_formed(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _in_word(text: str, start: int, end: int) -> bool:
    return _is_word(text[start - 1 : start]) or _is_word(text[end : end + 1])


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _skip_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    assert found is not None
    return found.end()
