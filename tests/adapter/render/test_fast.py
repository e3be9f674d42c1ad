"""The cheaper tokenizer: the same ids, or none."""

from __future__ import annotations

import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers

from adapter.render.fast import FastEncoder
from adapter.render.prompt import Renderer
from tests.adapter.render.families import FAMILIES

TEXT = "def f(x):\n    return {'a': 1234567, 'é': '你好, 👩‍💻'}  # don't\r\n\n\t<|im_end|> <think>"


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    """One of its own: the fixture of all tests is not to be changed."""
    return FAMILIES["demo"].load()


def test_the_ids_are_those_of_the_library(renderer: Renderer) -> None:
    texts = ["", TEXT, TEXT * 500, f"<|im_start|>user\n{TEXT}<|im_end|>\n<|im_start|>assistant\n"]
    expected = [renderer.encoder.encode(text).tolist() for text in texts]
    assert renderer.encoder.speed_up() is None
    found = [renderer.encoder.encode(text) for text in texts]
    assert [ids.tolist() for ids in found] == expected
    assert {str(ids.dtype) for ids in found} == {"int32"}


def test_a_text_that_it_refuses_is_the_librarys(renderer: Renderer) -> None:
    """The vocabulary has no token for the byte 0x1d, which the library leaves out."""
    library = renderer.tokenizer
    fast = FastEncoder(library, library.to_str())
    assert fast.encode(["a\x1db"]) is None
    assert renderer.encoder.speed_up() is None
    assert renderer.encoder.encode("a\x1db").tolist() == library.encode("a\x1db", add_special_tokens=False).ids


def test_another_tokenizer_of_the_same_name_is_not_taken(renderer: Renderer) -> None:
    other = Tokenizer.from_str(renderer.tokenizer.to_str())
    other.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex("[aeiou]"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    with pytest.raises(ValueError, match="differently"):
        FastEncoder(renderer.tokenizer, other.to_str())


def test_without_the_package_the_library_stays(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapter.render.fast.fastokens", None)
    assert renderer.encoder.speed_up() == "fastokens is not installed"
