from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from tests.support.assets import demo_model_dir, tokenizer_dir


@pytest.fixture(scope="session")
def qwen() -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_dir("qwen2_5") / "tokenizer.json"))


@pytest.fixture(scope="session")
def qwen3() -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_dir("qwen3") / "tokenizer.json"))


@pytest.fixture(scope="session")
def smollm() -> Tokenizer:
    return Tokenizer.from_file(str(demo_model_dir() / "tokenizer.json"))
