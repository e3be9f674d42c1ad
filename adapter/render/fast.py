"""A second tokenizer for the same ids, many times cheaper: ``fastokens``, where it passes an examination.

It reads the library's own description of a tokenizer, and takes seconds to load: a server begins with the library and changes over
once the examination is passed: the same ids on texts that hold what tokenizers have been seen to disagree about. A text that it
refuses (bytes that a vocabulary lacks) is the library's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

import numpy as np
from tokenizers import Tokenizer

from engine.types import Ids

try:
    import fastokens
except ImportError:  # no wheel for this machine
    fastokens = None

_AT_ONCE = 100
_MADE_UP = 2_000
"""Texts at random, the same ones each time."""

_PARTS = (
    *(" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n", "\u00a0", "\u2003", "\u2028", "\u3000", "\ufeff", "\u200d"),
    *("a", "B", "the", " The", "don't", "'LL", "'s", "\u2019ve", "x" * 40, "_", "snake_case", "CamelCase", "naïve"),
    *("0", "7", "42", "1234567", "3.14", "1e-9", "²", "Ⅻ", "٣", ".", "...", "!?", "--", "=" * 9, "/", "\\", "#", "%", "@"),
    *('{"a": [1, null]}', "<b>", "</p>", "def f(x):\n    return x\n", "http://a.b/c?d=e", "`", "«", "€", "™", "§", "$"),
    *("你好", "世界。", "カタカナ", "ひら", "한국어", "\u1100\u1161", "שלום", "مرحبا", "नमस्ते", "ไทย", "Ελλ", "Привет", "İ", "ß"),
    *("👩‍💻", "🇩🇪", "❤\ufe0f", "𝟘", "\U0010ffff", "\ufffd", "\u0301", "e\u0301"),
)  # fmt: skip


class FastEncoder:
    """Ids of texts in which no control token is looked for. Safe to call from several threads; the GIL is released."""

    def __init__(self, tokenizer: Tokenizer, described: str) -> None:
        """``described`` is what ``tokenizer.to_str`` gives. Takes seconds, in steps that hold up other threads for milliseconds.

        Raises: ValueError, if it cannot do what ``tokenizer`` does; the message says why.
        """
        if fastokens is None:
            raise ValueError("fastokens is not installed")
        try:
            self._tokenizer = fastokens.Tokenizer.from_json_str(described)
        except Exception as error:  # whatever a tokenizer has that it was not made for
            raise ValueError(f"fastokens does not read this tokenizer: {error}") from error
        texts = _examination()
        while some := list(islice(texts, _AT_ONCE)):
            expected = tokenizer.encode_batch_fast(some, add_special_tokens=False)
            for text, encoding in zip(some, expected, strict=True):
                found = self.encode([text])
                if found is not None and found[0].tolist() != encoding.ids:
                    raise ValueError(f"fastokens encodes {text!r} differently")

    def encode(self, texts: list[str]) -> Sequence[Ids] | None:
        """int32 for each text; None if it refuses one of them."""
        try:
            ids, offsets = self._tokenizer.encode_batch_flat(texts)
        except ValueError:
            return None
        ends = np.frombuffer(offsets, "<u8").tolist()
        flat = np.frombuffer(ids, "<i4")
        return [flat[start:end] for start, end in pairwise(ends)]


def _examination() -> Iterator[str]:
    """Texts, short ones so that a difference is seen where it is."""
    yield from _PARTS
    yield from (first + second for first in _PARTS for second in _PARTS)
    draw = random.Random(0)
    for _ in range(_MADE_UP):
        yield "".join(draw.choices(_PARTS, k=draw.randint(3, 24)))
    for plane in range(0, 0x30000, 97):
        yield "".join(chr(plane + step) for step in range(97) if not 0xD800 <= plane + step < 0xE000)
