"""Continuation: wherever a generation breaks off, the whole is what it would have been; what cannot be exact does not go on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.continuation import Continuation, cannot_continue, seed_at
from engine.types import (
    Finished,
    FinishReason,
    GenerateRequest,
    Guide,
    GuideKind,
    Origin,
    SamplingParams,
    TokenChunk,
)
from model_repo.common.stop_words import StopWords

VOCAB = 3
"""Small, so that stop words come up everywhere."""


def sampled(request: GenerateRequest) -> Iterator[tuple[int, FinishReason | None]]:
    """A greedy engine: each token depends on all before it; with the reason where the reply ends, as our models see it."""
    ids = request.prompt_ids.tolist()
    stop = StopWords(request.end_ids, request.stop_words, request.sampling.min_tokens)
    for count in range(1, request.max_tokens + 1):
        token = hashlib.blake2b(bytes(ids)).digest()[0] % VOCAB
        ids.append(token)
        ends = stop.feed(token)
        reason = FinishReason.STOP if ends else FinishReason.LENGTH if count == request.max_tokens else None
        yield token, reason
        if reason is not None:
            return


def chunk_of(pieces: Sequence[tuple[int, FinishReason | None]]) -> TokenChunk:
    ids = [token for token, _ in pieces]
    reason = pieces[-1][1] if pieces else None
    return TokenChunk(
        np.array(ids, np.int32), np.full(len(ids), -0.5, np.float32), 1, Finished(reason, 0) if reason else None
    )


def undisturbed(request: GenerateRequest) -> tuple[list[int], FinishReason]:
    pieces = list(sampled(request))
    reason = pieces[-1][1]
    assert reason is not None
    return [token for token, _ in pieces], reason


def broken(request: GenerateRequest, lives: Sequence[int], sizes: Sequence[int]) -> tuple[list[int], FinishReason]:
    """Segments that break off after so many tokens each (the last does not), which come in chunks of those sizes, over and over.
    Where a segment breaks off right after the reply's end, that is not told."""
    whole = Continuation(request)
    ids: list[int] = []
    remaining = [*lives, request.max_tokens + 1]
    while not whole.finished:
        reason = whole.ended()
        if reason is not None:
            return ids, reason
        pieces = list(sampled(whole.next_request("one:1")))
        life = remaining.pop(0)
        if life < len(pieces) or (life == len(pieces) and remaining):
            pieces = [(token, None) for token, _ in pieces[:life]]
        start = 0
        while start < len(pieces):
            size = sizes[(start + len(ids)) % len(sizes)]
            chunk = whole.accept(chunk_of(pieces[start : start + size]))
            ids += chunk.ids.tolist()
            start += size
            if chunk.finished is not None:
                return ids, chunk.finished.reason
    raise AssertionError("it ended without saying so")


requests = st.builds(
    lambda prompt, max_tokens, min_tokens, ends, words: GenerateRequest(
        "r",
        np.array(prompt, np.int32),
        max_tokens,
        SamplingParams(seed=9, min_tokens=min(min_tokens, max_tokens)),
        end_ids=tuple(ends),
        stop_words=tuple(map(tuple, words)),
    ),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5),
    st.integers(1, 24),
    st.integers(0, 12),
    st.sets(st.integers(0, VOCAB - 1), max_size=1),
    st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5), max_size=3),
)


@given(requests, st.lists(st.integers(0, 6), max_size=5), st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_a_reply_in_segments_is_the_reply(request: GenerateRequest, lives: list[int], sizes: list[int]) -> None:
    assert broken(request, lives, sizes) == undisturbed(request)


@given(requests, st.integers(2, 5), st.integers(0, 19), st.integers(0, 4), st.integers(1, 4))
def test_a_stop_word_over_a_cut_ends_the_reply(
    request: GenerateRequest, length: int, start: int, inside: int, size: int
) -> None:
    """The word is taken from the reply, and the cut lies in it."""
    free = replace(request, stop_words=(), end_ids=(), max_tokens=24)
    word = tuple(undisturbed(free)[0][start : start + length])
    request = replace(free, stop_words=(word,))
    assert broken(request, [start + 1 + inside % (length - 1)], [size]) == undisturbed(request)


def request(**fields: object) -> GenerateRequest:
    return replace(GenerateRequest("r", np.array([1, 2], np.int32), 10, SamplingParams(seed=5)), **fields)  # type: ignore[arg-type]


def after(count: int, **fields: object) -> Continuation:
    whole = Continuation(request(**fields))
    whole.next_request("one:1")
    whole.accept(TokenChunk(np.arange(count, dtype=np.int32), np.zeros(count, np.float32), 1))
    return whole


def test_the_rest_is_asked_for_with_lower_limits_and_another_seed() -> None:
    whole = after(4, sampling=SamplingParams(temperature=0.7, seed=5, min_tokens=6), session="s", turn=2)
    rest = whole.next_request("two:1")
    assert rest.prompt_ids.tolist() == [1, 2, 0, 1, 2, 3]
    assert rest.prompt_ids.dtype == np.int32
    assert (rest.max_tokens, rest.session, rest.turn, rest.request_id, rest.continued) == (6, "s", 2, "r.2", 4)
    assert rest.sampling == SamplingParams(temperature=0.7, seed=seed_at(5, 4), min_tokens=2)
    chunk = whole.accept(TokenChunk(np.array([7], np.int32), np.zeros(1, np.float32), 2))
    assert (chunk.segment, chunk.origin) == (1, Origin("two:1", seed_at(5, 4)))


def test_a_segment_without_tokens_is_none() -> None:
    asked = request()
    whole = Continuation(asked)
    assert whole.next_request("one:1") is asked
    again = whole.next_request("two:1")
    assert (again.request_id, again.prompt_ids.tolist(), again.sampling) == ("r.2", [1, 2], asked.sampling)
    assert whole.segment == 0


def test_seeds_of_segments_differ_and_stay_the_same_for_the_same_cut() -> None:
    seeds = {seed_at(seed, count) for seed in (0, 1, 2**64 - 1) for count in range(50)}
    assert len(seeds) == 150
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert seed_at(3, 0) == 3
    assert seed_at(5, 4) == 9718940664648528331


@pytest.mark.parametrize(
    ("fields", "obstacle"),
    [
        ({"sampling": SamplingParams(presence_penalty=0.5)}, "a presence or frequency penalty"),
        ({"sampling": SamplingParams(frequency_penalty=-0.5)}, "a presence or frequency penalty"),
        ({"guide": Guide(GuideKind.REGEX, "a+")}, "a guide"),
        ({"sampling": SamplingParams(repetition_penalty=1.2, temperature=0.3, min_tokens=4)}, None),
    ],
)
def test_what_depends_on_more_than_the_ids_cannot_go_on(fields: dict[str, object], obstacle: str | None) -> None:
    assert cannot_continue(request(**fields)) == obstacle
    assert Continuation(request(**fields)).obstacle is None
    assert after(1, **fields).obstacle == obstacle


def test_an_end_that_was_not_told_is_seen() -> None:
    assert after(4, end_ids=(3,)).ended() is FinishReason.STOP
    assert after(4, end_ids=(2,)).ended() is None
    assert after(4, stop_words=((2, 3),)).ended() is FinishReason.STOP
    assert after(4, end_ids=(3,), sampling=SamplingParams(min_tokens=4)).ended() is None
    assert after(10).ended() is FinishReason.LENGTH
    assert after(10, end_ids=(9,)).ended() is FinishReason.STOP


def test_the_last_chunk_of_such_a_reply_has_its_place() -> None:
    last = after(4, end_ids=(3,)).last_chunk(FinishReason.STOP)
    assert (last.ids.size, last.finished, last.segment) == (0, Finished(FinishReason.STOP, 0), 0)
    assert last.origin == Origin("one:1", 5)


def test_the_end_of_a_segment_that_was_cut_is_no_end() -> None:
    whole = Continuation(request())
    whole.next_request("one:1")
    ids, log_probs = np.array([1], np.int32), np.zeros(1, np.float32)
    chunk = whole.accept(TokenChunk(ids, log_probs, 1, Finished(FinishReason.CANCELLED, 12)), cut=True)
    assert (chunk.finished, chunk.cached_tokens, whole.finished) == (None, 12, False)
