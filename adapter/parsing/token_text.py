"""What one token says, as text and as bytes: for reports on single tokens. A reply's text comes from ``detokenize``."""

from __future__ import annotations

import re

from tokenizers import Tokenizer, decoders

from adapter.parsing.detokenize import spelled_bytes

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
"""How SentencePiece vocabularies write a token that is one byte."""

_BEFORE = "a"
"""Text to decode a token behind: at the start of a text the space that it begins with would go."""


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """The UTF-8 bytes that ``token`` adds to a text; perhaps a part of a character. None for an id outside the vocabulary."""
    piece = tokenizer.id_to_token(token)
    if piece is None:
        return b""
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        return spelled_bytes(piece)
    byte = _BYTE_TOKEN.fullmatch(piece)
    if byte is not None:
        return bytes.fromhex(byte.group(1))
    before = tokenizer.encode(_BEFORE, add_special_tokens=False).ids
    start = tokenizer.decode(before, skip_special_tokens=False)
    return tokenizer.decode([*before, token], skip_special_tokens=False).removeprefix(start).encode()
