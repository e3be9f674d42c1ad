"""When does a reply end: TensorRT-LLM's word list as ids, and an incremental matcher over sampled ids.

The matcher is the automaton of Aho and Corasick (1975): one amortised step per token, whatever the number and length of
the words. None of a reply's first ``min_tokens`` tokens ends it, neither as an end token nor as the last token of a
stop word (TensorRT-LLM bans end tokens for as long); a word that merely begins there counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Word = tuple[int, ...]


def decode_word_list(rows: NDArray[np.int32]) -> tuple[Word, ...]:
    """``rows`` int32 [2, N]: all words' ids joined, above the inclusive prefix sums of their lengths, padded with -1.

    Raises: ValueError, unless the offsets rise strictly, stay within N and are followed by nothing but -1.
    """
    ids, offsets = rows[0].tolist(), rows[1].tolist()
    ends = [offset for offset in offsets if offset != -1]
    if offsets[: len(ends)] != ends:
        raise ValueError("an offset follows the padding")
    starts = [0, *ends][: len(ends)]
    if any(end <= start for start, end in zip(starts, ends, strict=True)):
        raise ValueError("the offsets do not rise")
    if ends and ends[-1] > len(ids):
        raise ValueError(f"offset {ends[-1]} lies beyond the {len(ids)} ids")
    return tuple(tuple(ids[start:end]) for start, end in zip(starts, ends, strict=True))


class StopWords:
    """Feed it the sampled ids of one reply, in order, until ``feed`` says that the reply ends there."""

    def __init__(self, end_ids: Iterable[int], stop_words: Iterable[Sequence[int]], min_tokens: int) -> None:
        words = [(token,) for token in end_ids] + [tuple(word) for word in stop_words if word]
        self._next, self._fail, self._ends = _automaton(words)
        self._state = 0
        self._held = min_tokens

    @property
    def held(self) -> bool:
        """True while the next token cannot end the reply: a sampler bans the end tokens as long as this holds."""
        return self._held > 0

    def feed(self, token: int) -> bool:
        """True when the reply ends with this token."""
        state = self._state
        while state and token not in self._next[state]:
            state = self._fail[state]
        self._state = self._next[state].get(token, 0)
        if self._held > 0:
            self._held -= 1
            return False
        return self._ends[self._state]


def _automaton(words: Sequence[Word]) -> tuple[list[dict[int, int]], list[int], list[bool]]:
    """Transitions, failure links, and whether some word ends in a state; state 0 is the root."""
    following: list[dict[int, int]] = [{}]
    ends = [False]
    for word in words:
        state = 0
        for token in word:
            if token not in following[state]:
                following[state][token] = len(following)
                following.append({})
                ends.append(False)
            state = following[state][token]
        ends[state] = True
    fail = [0] * len(following)
    queue = deque(following[0].values())
    while queue:
        state = queue.popleft()
        for token, child in following[state].items():
            fallback = fail[state]
            while fallback and token not in following[fallback]:
                fallback = fail[fallback]
            fail[child] = following[fallback].get(token, 0)
            ends[child] = ends[child] or ends[fail[child]]
            queue.append(child)
    return following, fail, ends
