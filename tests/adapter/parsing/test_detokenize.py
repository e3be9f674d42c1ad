"""Pieces joined are ``tokenizer.decode``'s text; split characters are held back, nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from adapter.parsing.detokenize import ByteLevelDetokenizer, StreamDetokenizer, detokenizer
from tests.support.feeding import assert_linear

TEXTS = (
    "这是一个学习项目。<|im_end|>",
    "👩‍👩‍👧‍👦 family, 🏴󠁧󠁢󠁥󠁮󠁧󠁿 flag, e\u0301 combining, \u200d joiner",
    '<tool_call>\n{"name": "read_file", "arguments": {"path": "文档/读我.md"}}\n</tool_call><|im_end|>',
    " leading and trailing space \n\n\t",
    "\ufffd real replacement character \ufffd\ufffd",
    "한국어 العربية עברית ไทย हिन्दी",
    "",
)
FIXTURES_ONCE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    machine = detokenizer(tokenizer)
    return [*(machine.feed(token) for token in ids), machine.finish()]


def decoded(tokenizer: Tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False)


@pytest.fixture(scope="session", params=["qwen", "qwen3", "smollm"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert "".join(pieces(tokenizer, ids)) == decoded(tokenizer, ids)


@FIXTURES_ONCE
@given(st.data())
def test_any_ids(tokenizer: Tokenizer, data: st.DataObject) -> None:
    size = tokenizer.get_vocab_size()
    token = st.one_of(st.integers(0, size - 1), st.integers(0, 255), st.integers(size - 30, size + 10))
    ids = data.draw(st.lists(token, max_size=60))
    assert "".join(pieces(tokenizer, ids)) == decoded(tokenizer, ids)


@FIXTURES_ONCE
@given(st.data())
def test_any_text_cut_anywhere(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = tokenizer.encode(data.draw(st.text()), add_special_tokens=False).ids
    ids = ids[data.draw(st.integers(0, len(ids))) :]
    ids = ids[: data.draw(st.integers(0, len(ids)))]
    assert "".join(pieces(tokenizer, ids)) == decoded(tokenizer, ids)


@FIXTURES_ONCE
@given(st.data())
def test_tokens_of_a_message_at_once_are_tokens_one_by_one(tokenizer: Tokenizer, data: st.DataObject) -> None:
    size = tokenizer.get_vocab_size()
    ids = data.draw(st.lists(st.one_of(st.integers(0, 300), st.integers(0, size + 10)), max_size=40))
    at = data.draw(st.integers(0, len(ids)))
    stand_ins = dict.fromkeys(ids[at : at + 1], "\ud800")
    alone, together = detokenizer(tokenizer, stand_ins), detokenizer(tokenizer, stand_ins)
    assert together.feed_all(ids[:at]) + together.feed_all(ids[at:]) == "".join(map(alone.feed, ids))
    assert together.finish() == alone.finish()


def test_a_split_character_is_held_until_it_is_complete(qwen: Tokenizer) -> None:
    ids = qwen.encode("a😵‍💫b", add_special_tokens=False).ids
    given_out = pieces(qwen, ids)
    assert "".join(given_out) == "a😵‍💫b"
    assert "" in given_out[:-1]
    assert not any("\ufffd" in piece for piece in given_out)


def test_an_unfinished_character_at_the_end_is_what_decode_gives(qwen: Tokenizer) -> None:
    ids = qwen.encode("ok 😵", add_special_tokens=False).ids[:-1]
    given_out = pieces(qwen, ids)
    assert given_out[-1] == "\ufffd"
    assert "".join(given_out) == decoded(qwen, ids) == "ok \ufffd"


def test_special_tokens_are_text(qwen: Tokenizer) -> None:
    assert pieces(qwen, [105464, 100134, 73345, 1773, 151645]) == ["这是一个", "学习", "项目", "。", "<|im_end|>", ""]


def test_a_token_outside_the_vocabulary_is_no_text(qwen: Tokenizer) -> None:
    hole = qwen.get_vocab_size() + 5
    assert pieces(qwen, [hole, 1773, hole]) == ["", "。", "", ""]


def test_tokens_that_are_the_replacement_character_pass_at_once(qwen: Tokenizer) -> None:
    token = qwen.token_to_id("ï¿½")
    assert decoded(qwen, [token]) == "\ufffd"
    assert pieces(qwen, [token] * 3) == ["\ufffd", "\ufffd", "\ufffd", ""]


def test_the_cost_per_token_does_not_grow(qwen: Tokenizer) -> None:
    token = qwen.token_to_id("ï¿½")
    assert_linear(lambda size: pieces(qwen, [token] * size), 400)


def test_an_added_token_outside_the_byte_alphabet_stands_for_itself() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"Ġ": 0, "Ã": 1, "©": 2}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<｜end▁of▁sentence｜>", "é à"])
    assert isinstance(detokenizer(tokenizer), ByteLevelDetokenizer)
    assert (
        "".join(pieces(tokenizer, [3, 0, 1, 2, 4]))
        == decoded(tokenizer, [3, 0, 1, 2, 4])
        == "<｜end▁of▁sentence｜> éé à"
    )


# Vocabularies of the SentencePiece kind: words with a mark for the space before them, and byte tokens for the rest.

WORDS = ("▁hello", "▁world", "lo", "▁", "你")


@pytest.fixture(scope="session")
def pieced() -> Tokenizer:
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {word: 256 + n for n, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    marks = decoders.Replace("▁", " ")
    tokenizer.decoder = decoders.Sequence(
        [marks, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", left=1, right=0)]
    )
    return tokenizer


@FIXTURES_ONCE
@given(words=st.lists(st.one_of(st.sampled_from(range(256, 256 + len(WORDS))), st.sampled_from("é你😀"))))
def test_other_vocabularies_go_through_the_library(pieced: Tokenizer, words: list[int | str]) -> None:
    ids = [token for word in words for token in ([word] if isinstance(word, int) else list(word.encode()))]
    assert isinstance(detokenizer(pieced), StreamDetokenizer)
    assert "".join(pieces(pieced, ids)) == decoded(pieced, ids)


def test_the_leading_space_goes_once(pieced: Tokenizer) -> None:
    assert pieces(pieced, [256, 257, 257]) == ["hello", " world", " world", ""]


def test_other_vocabularies_flush_an_unfinished_character(pieced: Tokenizer) -> None:
    assert "".join(pieces(pieced, [256, 0xE4, 0xBD])) == decoded(pieced, [256, 0xE4, 0xBD])


def test_text_that_was_passed_on_is_never_taken_back(pieced: Tokenizer) -> None:
    ids = [256, *"你".encode(), 0xFF, 257, 256]  # the last byte makes decode turn all four into U+FFFD
    given_out = "".join(pieces(pieced, ids))
    assert given_out.startswith("hello你")
    assert given_out.endswith(" world hello")
    assert len(given_out) == len(decoded(pieced, ids))
