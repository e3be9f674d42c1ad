"""What an engine has sent of one reply, chunk by chunk, and what of that is the reply.

A stop string of the client, or the last call that a reply may hold, ends it at the token that completed it; the engine may have
sampled a few tokens more. So everything here is asked for the first ``count`` tokens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adapter.types import TurnSegment, VersionSpan
from engine.types import Ids, LogProbs, TokenChunk


class Sampled:
    """``told``: whether the tokens are going to be told to the client as they come (``take``)."""

    def __init__(self, told: bool = False) -> None:
        self._chunks: list[TokenChunk] = []
        self._told = told
        self._untaken: list[tuple[int, float]] = []
        self._taken = 0

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, chunk: TokenChunk) -> None:
        self._chunks.append(chunk)
        if self._told:
            self._untaken += zip(chunk.ids.tolist(), chunk.log_probs.tolist(), strict=True)

    def take(self, count: int) -> list[tuple[int, float]]:
        """Ids and log probs up to token ``count`` that were not taken before; none if they are not going to be told."""
        new, self._taken = count - self._taken, count
        taken, self._untaken = self._untaken[:new], self._untaken[new:]
        return taken

    @property
    def count(self) -> int:
        """All tokens so far."""
        return sum(int(chunk.ids.size) for chunk in self._chunks)

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that came from the engine's cache, known at the end. The prompt of a continued reply is its first
        segment's; 0 where that broke off before it said."""
        first = (_cached_tokens(chunk) for chunk in self._chunks if chunk.segment == 0)
        return next((cached for cached in first if cached is not None), 0)

    def ids(self, count: int) -> Ids:
        return np.concatenate([chunk.ids for chunk in self._chunks])[:count]

    def log_probs(self, count: int) -> LogProbs:
        return np.concatenate([chunk.log_probs for chunk in self._chunks])[:count]

    def segments(self, count: int) -> tuple[TurnSegment, ...]:
        """Where each came from; none if the engine does not say."""
        found: dict[int, TurnSegment] = {}
        start = 0
        for chunk in self._chunks:
            origin, known = chunk.origin, found.get(chunk.segment)
            if origin is not None and known is None and start < count and chunk.ids.size:
                known = TurnSegment(start, origin.endpoint, origin.seed, chunk.weight_version, None)
            if known is not None:
                found[chunk.segment] = replace(known, cached_tokens=_cached_tokens(chunk))
            start += int(chunk.ids.size)
        return tuple(found.values())

    def versions(self, count: int) -> tuple[VersionSpan, ...]:
        """Runs of equal weight version."""
        spans: list[VersionSpan] = []
        start = 0
        for chunk in self._chunks:
            end = min(start + int(chunk.ids.size), count)
            if end > start and spans and spans[-1].version == chunk.weight_version:
                spans[-1] = VersionSpan(spans[-1].start, end, chunk.weight_version)
            elif end > start:
                spans.append(VersionSpan(start, end, chunk.weight_version))
            start = end
        return tuple(spans)


def _cached_tokens(chunk: TokenChunk) -> int | None:
    return chunk.cached_tokens if chunk.finished is None else chunk.finished.cached_tokens
