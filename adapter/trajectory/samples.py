"""Training samples, in the shape of slime's ``Sample``.

    tokens = leading prompt ++ response
    len(loss_mask) == len(rollout_log_probs) == response_length == len(tokens) - len(leading prompt)

The response holds what the model sampled and, between its turns, context: context has loss mask 0 and log prob 0.0. A
sample has at least one trained token. ``metadata["turns"]`` says which part of the response is whose output:

    turn_index, finish_reason
    start, end                  [start, end) counts tokens of the response; a cut sample may end within an output
    trained                     false where the turn trains in another sample, or not at all
    log_prob_mode               what the log probs are the log of; None where it was not recorded, as the next three
    temperature, top_p, top_k   what was in force
    versions                    [[start, end, weight version], ...], counted as start and end are
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapter.trajectory.ledger import DropReason
from adapter.trajectory.node import Generation
from adapter.trajectory.rows import Row, Segment
from adapter.types import VersionSpan
from engine.types import LogProbs


@dataclass
class Sample:
    """One training row. As ``base_sample`` it says which index, group, prompt and label the exported ones carry."""

    index: int | None = None
    group_index: int | None = None
    rollout_id: int | None = None
    prompt: Any = ""
    label: Any = None
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    loss_mask: list[int] = field(default_factory=list)
    rollout_log_probs: list[float] = field(default_factory=list)
    reward: Any = None
    status: str = "completed"
    metadata: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready if prompt, label, reward and metadata are. Lists are shared, not copied."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True, slots=True)
class SampleFields:
    """What all samples of an export have in common.

    ``reward`` goes in full to every sample. ``max_sample_tokens`` cuts tokens, mask and log probs; None or 0 means no
    limit. ``decode`` turns the ids of a response into its text; without it ``response`` stays empty.
    """

    base_sample: Sample
    reward: Any = 0.0
    extra_metadata: dict[str, Any] | None = None
    max_sample_tokens: int | None = None
    decode: Callable[[list[int]], str] | None = None

    def __post_init__(self) -> None:
        if self.max_sample_tokens is not None and self.max_sample_tokens < 0:
            raise ValueError(f"max_sample_tokens is {self.max_sample_tokens}; it counts tokens, 0 means no limit")


def build_sample(row: Row, common: SampleFields, flags: dict[str, bool], dropped: Counter[str]) -> Sample | None:
    """The sample of a row, or None if nothing in it trains. What does not train is added to ``dropped``."""
    prompt_len = int(row.prompt.size)
    whole = sum(int(segment.ids.size) for segment in row.segments)
    kept = max(0, min(whole, (common.max_sample_tokens or prompt_len + whole) - prompt_len))
    _count_dropped(row, kept, dropped)
    mask = np.concatenate([_mask(segment) for segment in row.segments])[:kept]
    if not mask.any():
        return None
    log_probs = np.concatenate([_log_probs(segment) for segment in row.segments])[:kept]
    tokens = np.concatenate([row.prompt, *(segment.ids for segment in row.segments)])[: prompt_len + kept].tolist()
    base = common.base_sample
    return Sample(
        index=base.index,
        group_index=base.group_index,
        rollout_id=base.index if base.rollout_id is None else base.rollout_id,
        prompt=base.prompt,
        label=base.label,
        tokens=tokens,
        response=common.decode(tokens[prompt_len:]) if common.decode else "",
        response_length=kept,
        loss_mask=mask.astype(np.uint8).tolist(),
        rollout_log_probs=log_probs.tolist(),
        reward=common.reward,
        metadata={**(common.extra_metadata or {}), **flags, "turns": _spans(row, kept)},
    )


def _trainable(turn: Generation) -> NDArray[np.bool_]:
    """Which output tokens of a turn may train: bool [N]."""
    if turn.untrainable is not None:
        return np.zeros(turn.output.size, np.bool_)
    if turn.log_probs is None:
        return np.ones(turn.output.size, np.bool_)
    return np.isfinite(turn.log_probs)


def _mask(segment: Segment) -> NDArray[np.bool_]:
    if segment.turn is None or not segment.trained:
        return np.zeros(segment.ids.size, np.bool_)
    return _trainable(segment.turn)


def _log_probs(segment: Segment) -> LogProbs:
    recorded = None if segment.turn is None else segment.turn.log_probs
    if recorded is None:
        return np.zeros(segment.ids.size, np.float32)
    return np.where(_mask(segment), recorded, np.float32(0.0))


def _placed(row: Row) -> Iterator[tuple[int, Generation, bool]]:
    """Where in the response each turn's output starts, and whether it trains."""
    start = 0
    for segment in row.segments:
        if segment.turn is not None:
            yield start, segment.turn, segment.trained
        start += int(segment.ids.size)


def _count_dropped(row: Row, kept: int, dropped: Counter[str]) -> None:
    for start, turn, trained in _placed(row):
        if trained:
            trainable = _trainable(turn)
            dropped[turn.untrainable or DropReason.NON_FINITE] += int((~trainable).sum())
            dropped[DropReason.CUT] += int(trainable[max(0, kept - start) :].sum())


def _spans(row: Row, kept: int) -> list[dict[str, Any]]:
    return [_span(turn, start, kept, trained) for start, turn, trained in _placed(row) if start < kept]


def _span(turn: Generation, start: int, kept: int, trained: bool) -> dict[str, Any]:
    end = min(kept, start + int(turn.output.size))
    sampling = turn.sampling
    return {
        "turn_index": turn.turn_index,
        "finish_reason": turn.finish_reason,
        "start": start,
        "end": end,
        "trained": bool(trained and _trainable(turn)[: end - start].any()),
        "log_prob_mode": sampling and str(sampling.log_prob_mode),
        "temperature": sampling and sampling.params.temperature,
        "top_p": sampling and sampling.params.top_p,
        "top_k": sampling and sampling.params.top_k,
        "versions": [_clipped(span, start, end) for span in turn.versions if start + span.start < end],
    }


def _clipped(span: VersionSpan, start: int, end: int) -> list[int]:
    return [start + span.start, min(end, start + span.end), span.version]
