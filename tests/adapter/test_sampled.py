"""What was sampled of one reply, for the record and for the client."""

from __future__ import annotations

from typing import Any

import numpy as np

from adapter.sampled import Sampled
from adapter.types import TurnSegment, VersionSpan
from engine.types import Finished, FinishReason, Origin, TokenChunk


def chunk(*ids: int, version: int = 1, finished: Finished | None = None) -> TokenChunk:
    return TokenChunk(np.array(ids, np.int32), np.array([-i / 8 for i in ids], np.float32), version, finished)


def sampled(*chunks: TokenChunk, told: bool = False) -> Sampled:
    made = Sampled(told)
    for each in chunks:
        made.add(each)
    return made


def test_everything_is_cut_to_the_reply() -> None:
    made = sampled(chunk(1, 2), chunk(3, 4, 5), chunk(6, finished=Finished(FinishReason.STOP, 7)))
    assert (made.count, made.cached_tokens) == (6, 7)
    assert made.ids(4).tolist() == [1, 2, 3, 4]
    assert made.log_probs(3).tolist() == [-0.125, -0.25, -0.375]


def test_versions_are_runs_of_tokens() -> None:
    made = sampled(chunk(1), chunk(2, 3), chunk(), chunk(4, version=2), chunk(5, 6, version=2), chunk(7, version=3))
    assert made.versions(7) == (VersionSpan(0, 3, 1), VersionSpan(3, 6, 2), VersionSpan(6, 7, 3))
    assert made.versions(5) == (VersionSpan(0, 3, 1), VersionSpan(3, 5, 2))
    assert made.versions(2) == (VersionSpan(0, 2, 1),)


ONE, TWO = Origin("one:1", 5), Origin("two:1", 9)


def part(segment: int, origin: Origin, *ids: int, **more: Any) -> TokenChunk:
    return chunk(*ids)._replace(segment=segment, origin=origin, **more)


def test_segments_are_where_tokens_come_from() -> None:
    made = sampled(
        part(0, ONE, 1, 2),
        part(0, ONE, 3),
        part(0, ONE, cached_tokens=4),
        part(1, TWO, 4, weight_version=2),
        part(2, ONE, 5, 6, weight_version=2, finished=Finished(FinishReason.STOP, 8)),
    )
    first, second = TurnSegment(0, "one:1", 5, 1, 4), TurnSegment(3, "two:1", 9, 2, None)
    assert made.segments(6) == (first, second, TurnSegment(4, "one:1", 5, 2, 8))
    assert made.segments(4) == (first, second)
    assert made.segments(3) == (first,)
    assert made.cached_tokens == 4


def test_the_cached_tokens_of_a_segment_that_broke_off_are_not_known() -> None:
    made = sampled(part(0, ONE, 1), part(1, TWO, 2, finished=Finished(FinishReason.STOP, 8)))
    assert [segment.cached_tokens for segment in made.segments(2)] == [None, 8]
    assert made.cached_tokens == 0


def test_an_engine_that_does_not_say_where_it_sampled_has_no_segments() -> None:
    assert sampled(chunk(1, 2), chunk(3, finished=Finished(FinishReason.STOP, 8))).segments(3) == ()


def test_nothing_yet() -> None:
    assert not Sampled()
    assert (Sampled().count, Sampled().cached_tokens) == (0, 0)


def test_tokens_are_taken_once() -> None:
    made = Sampled(told=True)
    made.add(chunk(1, 2, 3))
    assert made.take(2) == [(1, -0.125), (2, -0.25)]
    assert made.take(2) == []
    made.add(chunk(4))
    assert [token for token, _ in made.take(4)] == [3, 4]


def test_what_nobody_asked_for_is_not_kept() -> None:
    assert sampled(chunk(1, 2)).take(2) == []
