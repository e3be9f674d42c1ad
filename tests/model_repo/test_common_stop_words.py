"""The matcher against the plain definition, and the word list's encoding against the client's."""

from __future__ import annotations

import numpy as np
import pytest
from common.stop_words import StopWords, decode_word_list
from hypothesis import given
from hypothesis import strategies as st

from engine.contract import encode_word_list

tokens = st.integers(0, 2)  # few, so that words overlap and nest
word_lists = st.lists(st.lists(tokens, min_size=1, max_size=4).map(tuple), max_size=4)


def end_by_definition(output: list[int], words: list[tuple[int, ...]], min_tokens: int) -> int | None:
    """The length of the shortest prefix beyond ``min_tokens`` that ends in a word."""
    for length in range(min_tokens + 1, len(output) + 1):
        if any(tuple(output[:length][-len(word) :]) == word for word in words):
            return length
    return None


@given(st.lists(tokens, max_size=30), word_lists, st.integers(0, 5))
def test_ends_where_the_definition_says(output: list[int], words: list[tuple[int, ...]], min_tokens: int) -> None:
    matcher = StopWords([word[0] for word in words if len(word) == 1], [w for w in words if len(w) > 1], min_tokens)
    fed = next((count for count, token in enumerate(output, 1) if matcher.feed(token)), None)
    assert fed == end_by_definition(output, words, min_tokens)


def test_min_tokens_holds_back_end_ids_and_words_but_not_the_beginning_of_a_word() -> None:
    matcher = StopWords([9], [(1, 2)], min_tokens=2)
    held = []
    ended = []
    for token in (9, 1, 2):
        held.append(matcher.held)
        ended.append(matcher.feed(token))
    assert held == [True, True, False]
    assert ended == [False, False, True]


def test_without_words_nothing_ends() -> None:
    matcher = StopWords([], [], 0)
    assert not any(matcher.feed(token) for token in range(100))


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=5).map(tuple), min_size=1, max_size=5))
def test_the_word_list_of_the_client_is_read_back(words: list[tuple[int, ...]]) -> None:
    tensor = encode_word_list("stop_words_list", words)
    rows = np.frombuffer(tensor.data, dtype=np.int32).reshape(tensor.shape)[0]
    assert decode_word_list(rows) == tuple(words)


def test_a_list_of_nothing_but_padding_has_no_words() -> None:
    assert decode_word_list(np.full((2, 3), -1, np.int32)) == ()


@given(st.lists(st.tuples(st.integers(-2, 5), st.integers(-2, 5)), max_size=6))
def test_any_rows_are_either_words_or_a_value_error(columns: list[tuple[int, int]]) -> None:
    rows = np.array(columns, dtype=np.int32).reshape(-1, 2).T
    try:
        words = decode_word_list(rows)
    except ValueError:
        return
    assert all(words)
    assert [token for word in words for token in word] == rows[0, : sum(map(len, words))].tolist()


@pytest.mark.parametrize("rows", [[[1, 2], [2, 1]], [[1, 2], [-1, 1]], [[1, 2], [3, -1]], [[1, 2], [-2, 1]]])
def test_malformed_rows(rows: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="offset"):
        decode_word_list(np.array(rows, np.int32))
