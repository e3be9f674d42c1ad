"""A generation in segments: what it has given so far, and the request that goes on from there. Pure.

A segment is what one endpoint samples in one go. When it breaks off after n tokens, by a failure or by a cut, the next one is asked
for with the n tokens behind the prompt, so that every token is still sampled given all tokens before it:

- ``max_tokens`` and ``min_tokens`` are lowered by n;
- the seed is another one, ``seed_at(seed, n)``: with the same one a sampler would draw the same numbers again, and the two segments
  would not be independent;
- a stop word that began before the cut is looked for here, in the joined ids, and ends the reply at the token that completes it, as
  the engine would have. End tokens, being one token, cannot lie on both sides;
- tokens that had come may have ended the reply already, though the engine did not get to say so (``ended``).

What depends on more than the ids cannot go on: a presence or frequency penalty counts the *output*, which would begin anew, and so
would a guide. A repetition penalty counts prompt and output alike, and goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from engine.types import Finished, FinishReason, GenerateRequest, Ids, LogProbs, Origin, SamplingParams, TokenChunk

NO_IDS: Ids = np.empty(0, np.int32)
NO_LOG_PROBS: LogProbs = np.empty(0, np.float32)


def seed_at(seed: int, tokens: int) -> int:
    """The uint64 seed of a segment that begins after so many tokens: the first 8 bytes of BLAKE2b over both, little-endian."""
    if tokens == 0:
        return seed
    digest = hashlib.blake2b(seed.to_bytes(8, "little") + tokens.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def cannot_continue(request: GenerateRequest) -> str | None:
    """What of the request makes it impossible to go on exactly once there are tokens; None if nothing does."""
    if request.guide is not None:
        return "a guide"
    if request.sampling.presence_penalty or request.sampling.frequency_penalty:
        return "a presence or frequency penalty"
    return None


class Continuation:
    """One generation. ``next_request`` begins a segment, ``accept`` takes what comes of it."""

    def __init__(self, request: GenerateRequest) -> None:
        self._request = request
        self._parts: list[Ids] = []
        self._words = [word for word in request.stop_words if len(word) > 1]
        self._watched = max(map(len, self._words), default=1) - 1
        """Tokens behind a cut, or before it, in which a stop word may lie on both sides."""
        self._tail: Ids = NO_IDS
        """The last tokens before the cut."""
        self._start = 0
        self._attempts = 0
        self._origin: Origin | None = None
        self._version = 0
        self._cached_tokens = 0
        self.segment = -1
        self.count = 0
        """Tokens so far."""
        self.finished = False

    @property
    def obstacle(self) -> str | None:
        """Why it cannot go on from here exactly; None if it can."""
        return cannot_continue(self._request) if self.count else None

    def ended(self) -> FinishReason | None:
        """Whether the tokens so far are a whole reply, though no last chunk said so."""
        if self.count >= self._request.max_tokens:
            return FinishReason.STOP if self._stopped() else FinishReason.LENGTH
        return FinishReason.STOP if self._stopped() else None

    def next_request(self, endpoint: str) -> GenerateRequest:
        """The request for the rest. Each has an id of its own, since an engine may not have forgotten the last one yet."""
        request, count = self._request, self.count
        if self.segment < 0 or count > self._start:
            self.segment += 1
            self._start = count
        self._attempts += 1
        seed = seed_at(request.sampling.seed, count)
        self._origin = Origin(endpoint, seed)
        if count == 0:
            return request if self._attempts == 1 else replace(request, request_id=self._request_id())
        output = self._output()
        self._tail = output[count - min(count, self._watched) :]
        return replace(
            request,
            request_id=self._request_id(),
            prompt_ids=np.concatenate([request.prompt_ids, output]),
            max_tokens=request.max_tokens - count,
            continued=count,
            sampling=_after(request.sampling, seed, count),
        )

    def accept(self, chunk: TokenChunk, *, cut: bool = False) -> TokenChunk:
        """The chunk as part of the whole, shorter if a stop word over the cut ends it. ``cut``: its end is that of its segment."""
        ids, log_probs, finished = chunk.ids, chunk.log_probs, chunk.finished
        cached_tokens: int | None = None
        end = self._end_over_cut(ids)
        if end is not None:
            ids, log_probs = ids[:end], log_probs[:end]
            finished = Finished(FinishReason.STOP, finished.cached_tokens if finished else 0)
        elif cut and finished is not None:
            cached_tokens, finished = finished.cached_tokens, None
        self._parts.append(ids)
        self.count += len(ids)
        self._version = chunk.weight_version
        self.finished = finished is not None
        return TokenChunk(ids, log_probs, chunk.weight_version, finished, self.segment, self._origin, cached_tokens)

    def last_chunk(self, reason: FinishReason) -> TokenChunk:
        """The end of a reply that was whole when its segment broke off."""
        self.finished = True
        return TokenChunk(NO_IDS, NO_LOG_PROBS, self._version, Finished(reason, 0), self.segment, self._origin)

    def _request_id(self) -> str:
        return f"{self._request.request_id}.{self._attempts}"

    def _output(self) -> Ids:
        self._parts = [np.concatenate([NO_IDS, *self._parts])]
        return self._parts[0]

    def _stopped(self) -> bool:
        if self.count <= self._request.sampling.min_tokens:
            return False
        output = self._output()
        return int(output[-1]) in self._request.end_ids or any(
            _ends_with(output, word) for word in self._request.stop_words if word
        )

    def _end_over_cut(self, ids: Ids) -> int | None:
        """How many of the new ids there are up to the end of the first stop word that began before the cut."""
        behind = self.count - self._start
        if self._start == 0 or behind >= self._watched:
            return None
        known = np.concatenate([self._tail, self._output()[self._start :]])
        for place in range(1, min(len(ids), self._watched - behind) + 1):
            joined = np.concatenate([known, ids[:place]])
            held = self.count + place <= self._request.sampling.min_tokens
            if not held and any(len(word) > behind + place and _ends_with(joined, word) for word in self._words):
                return place
        return None


def _after(sampling: SamplingParams, seed: int, tokens: int) -> SamplingParams:
    return replace(sampling, seed=seed, min_tokens=max(0, sampling.min_tokens - tokens))


def _ends_with(ids: Ids, word: Sequence[int]) -> bool:
    return len(ids) >= len(word) and ids[-len(word) :].tolist() == list(word)
