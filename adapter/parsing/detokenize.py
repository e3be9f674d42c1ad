"""Ids to text, as they come; the pieces joined are what ``tokenizer.decode(ids, skip_special_tokens=False)`` gives.

A character may be spread over tokens: its bytes are held back until it is complete. Special tokens are kept as text, but for those
that a parser wants to know from text that spells them: these give their stand-in (``adapter.parsing.markers``).

Byte-level vocabularies (Qwen, Llama 3, GPT-2, DeepSeek and most others) are decoded here as bytes: a token always stands for the
same bytes, so a table and Python's incremental UTF-8 decoder do it in constant time per token, and the tokens of a message at once:
0.1 us a token where the table knows it (``SpelledTokens``). ``tokenizers.decoders.DecodeStream``
serves every other kind of vocabulary. It isn't used for all, because it takes any U+FFFD at the end for an unfinished character:
a run of tokens that *are* U+FFFD is held back for as long as it goes on, is decoded anew at each token (8 s for 8000 tokens),
and at the end of a reply, where it has no flush, is lost.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from tokenizers import Tokenizer, decoders

from adapter.parsing.markers import Markers

CONTEXT_TOKENS = 4
"""Tokens that a stream is begun anew with, so that it does not take the next one for the first of a text, whose leading space
goes. One UTF-8 character is at most four byte tokens."""

_NO_STAND_INS: Mapping[int, str] = MappingProxyType({})


class SpelledTokens(dict[int, bytes]):
    """What the tokens of a byte-level vocabulary spell, each looked up when it first comes, about 100 bytes of memory for each.
    One is kept per vocabulary and shared by all replies."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> bytes:
        spelled = self[token] = spelled_bytes(self._tokenizer.id_to_token(token))
        return spelled


class Detokenizer(Protocol):
    def feed(self, token: int) -> str:
        """The text that this token completes, possibly none. An id outside the vocabulary is no text, as in ``decode``."""
        ...

    def feed_all(self, tokens: Sequence[int]) -> str:
        """The same as ``feed`` for one after the other."""
        ...

    def finish(self) -> str:
        """What an unfinished character at the end decodes to: U+FFFD, as in ``decode``."""
        ...


def detokenizer(
    tokenizer: Tokenizer, stand_ins: Mapping[int, str] = _NO_STAND_INS, spelled: SpelledTokens | None = None
) -> Detokenizer:
    """A new detokenizer for one reply. ``stand_ins``: token id to the character that is given for it. ``spelled`` may be shared."""
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        return ByteLevelDetokenizer(SpelledTokens(tokenizer) if spelled is None else spelled, stand_ins)
    return StreamDetokenizer(tokenizer, stand_ins)


def marked_text(
    tokenizer: Tokenizer, markers: Markers, ids: Sequence[int], spelled: SpelledTokens | None = None
) -> str:
    """The text of ``ids`` as a parser would read it, with stand-ins. ``spelled`` may be shared."""
    machine = detokenizer(tokenizer, markers.stand_ins, spelled)
    return machine.feed_all(ids) + machine.finish()


class ByteLevelDetokenizer:
    """For vocabularies whose tokens spell bytes."""

    def __init__(self, spelled: SpelledTokens, stand_ins: Mapping[int, str] = _NO_STAND_INS) -> None:
        self._spelled = spelled
        self._stand_ins = stand_ins
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        stand_in = self._stand_ins.get(token)
        if stand_in is not None:
            return self.finish() + stand_in
        return self._utf8.decode(self._spelled[token])

    def feed_all(self, tokens: Sequence[int]) -> str:
        if self._stand_ins.keys().isdisjoint(tokens):
            return self._utf8.decode(b"".join([self._spelled[token] for token in tokens]))
        return "".join(map(self.feed, tokens))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class StreamDetokenizer:
    """For all other vocabularies.

    ``decode`` may change what it gave for the ids so far when more arrive: a run of SentencePiece byte tokens that turns out not to
    be UTF-8 becomes one U+FFFD per byte. Text that was passed on stays; ``decode``'s text goes on behind it. Each such
    change costs a decode of the whole reply.
    """

    def __init__(self, tokenizer: Tokenizer, stand_ins: Mapping[int, str] = _NO_STAND_INS) -> None:
        self._tokenizer = tokenizer
        self._stand_ins = stand_ins
        self._stream = decoders.DecodeStream(skip_special_tokens=False)
        self._ids: list[int] = []
        self._given = 0

    def feed(self, token: int) -> str:
        piece = self._next(token)
        stand_in = self._stand_ins.get(token)
        if stand_in is None:
            return piece
        return piece.removesuffix(self._tokenizer.decode([token], skip_special_tokens=False)) + stand_in

    def feed_all(self, tokens: Sequence[int]) -> str:
        return "".join(map(self.feed, tokens))

    def _next(self, token: int) -> str:
        self._ids.append(token)
        try:
            piece = self._stream.step(self._tokenizer, token) or ""
        except Exception:  # what the library raises for a changed prefix is a bare Exception
            self._stream = decoders.DecodeStream(ids=self._ids[-CONTEXT_TOKENS:], skip_special_tokens=False)
            piece = self._rest()
        self._given += len(piece)
        return piece

    def finish(self) -> str:
        return self._rest()

    def _rest(self) -> str:
        return self._tokenizer.decode(self._ids, skip_special_tokens=False)[self._given :]


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte: itself where it is printable, else the next from U+0100 (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def spelled_bytes(token: str | None) -> bytes:
    """The bytes that a token of a byte-level vocabulary spells.

    One with a character outside the byte alphabet was added as plain text and stands for itself.
    """
    if token is None:
        return b""
    try:
        return bytes(map(_BYTES.__getitem__, token))
    except KeyError:
        return token.encode()
