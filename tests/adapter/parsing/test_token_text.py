"""What single tokens say; joined, the bytes are the text."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from adapter.parsing.token_text import token_bytes
from tests.support.assets import tokenizer_dir

TEXT = 'Hello,  world! 这是一个项目。 👩‍👩‍👧 <|im_end|> <bos> {"a": 1}\n'


@pytest.fixture(scope="module", params=["qwen2_5", "gemma3"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """One vocabulary whose tokens spell bytes, and one of SentencePiece."""
    return Tokenizer.from_file(str(tokenizer_dir(request.param) / "tokenizer.json"))


def test_the_bytes_of_all_tokens_are_the_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert b"".join(token_bytes(tokenizer, token) for token in ids) == TEXT.encode()


def test_an_unknown_id_says_nothing(tokenizer: Tokenizer) -> None:
    assert token_bytes(tokenizer, 10**7) == b""
