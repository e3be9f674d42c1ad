"""Training samples, in the shape of slime's ``Sample``.

    tokens = leading prompt ++ response
    len(loss_mask) == len(rollout_log_probs) == response_length == len(tokens) - len(leading prompt)

The response holds what the model sampled and, between its turns, context: context has loss mask 0 and log prob 0.0. A
sample has at least one trained token. ``metadata["turns"]`` says which part of the response is whose output:

    turn_index, finish_reason
    start, end                  [start, end) counts tokens of the response; a cut sample may end within an output
    trained                     false where the turn trains in another sample, or not at all
    reward                      the turn's own, if it was given one
    label                       what the turn was for: ``main``, ``subagent``, ``title``, ...; None where nobody says
    log_prob_mode               what the log probs are the log of; None where it was not recorded, as all of the next
    temperature, top_p, ...     what was in force: the fields of ``engine.types.SamplingParams``
    guide                       the grammar that held the output, {kind, text}; None where there was none
    versions                    [[start, end, weight version], ...], counted as start and end are
    segments                    only of a turn that was continued: [[start, seed], ...], counted likewise. Each was sampled with
                                its own seed, from the prompt and what comes before it

``metadata["leaf"]`` is the last turn of the leaf that the sample comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapter.trajectory.filters import ExportFilters, label_of
from adapter.trajectory.generation import Generation
from adapter.trajectory.leaves import Leaf
from adapter.trajectory.ledger import DropReason, Fates
from adapter.trajectory.rewards import RewardSpec
from adapter.trajectory.rows import Row, Segment
from adapter.types import Sampling, TurnSegment, VersionSpan
from engine.types import LogProbs, SamplingParams


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
    weight_versions: list[str] = field(default_factory=list)
    """Of the tokens that train, each once, oldest first."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready if prompt, label, reward and metadata are. Lists are shared, not copied."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True, slots=True)
class SampleFields:
    """What all samples of an export have in common.

    ``reward`` goes in full to every sample; a ``RewardSpec`` gives rewards to leaves and turns. ``max_sample_tokens``
    cuts tokens, mask and log probs; None or 0 means no limit. ``decode`` turns the ids of a response into its text, by the
    name of the model that sampled the row's end; without it ``response`` stays empty. ``filters`` say what must not train.
    """

    base_sample: Sample
    reward: Any = 0.0
    extra_metadata: dict[str, Any] | None = None
    max_sample_tokens: int | None = None
    decode: Callable[[str, list[int]], str] | None = None
    filters: ExportFilters = field(default_factory=ExportFilters)

    def __post_init__(self) -> None:
        if self.max_sample_tokens is not None and self.max_sample_tokens < 0:
            raise ValueError(f"max_sample_tokens is {self.max_sample_tokens}; it counts tokens, 0 means no limit")


def build_sample(row: Row, common: SampleFields, leaf: Leaf, fates: Fates) -> Sample | None:
    """The sample of a row, or None if nothing in it trains. Every token of the turns that train here gets its fate."""
    prompt_len = int(row.prompt.size)
    whole = sum(int(segment.ids.size) for segment in row.segments)
    kept = max(0, min(whole, (common.max_sample_tokens or prompt_len + whole) - prompt_len))
    placed = _placed(row, kept, common.filters, fates)
    mask = np.concatenate([each.mask for each in placed])[:kept]
    if not mask.any():
        return None
    log_probs = np.concatenate([each.log_probs for each in placed])[:kept]
    tokens = np.concatenate([row.prompt, *(segment.ids for segment in row.segments)])[: prompt_len + kept].tolist()
    rewards = RewardSpec.of(common.reward)
    base = common.base_sample
    return Sample(
        index=base.index,
        group_index=base.group_index,
        rollout_id=base.index if base.rollout_id is None else base.rollout_id,
        prompt=base.prompt,
        label=base.label,
        tokens=tokens,
        response=common.decode(row.model, tokens[prompt_len:]) if common.decode else "",
        response_length=kept,
        loss_mask=mask.astype(np.uint8).tolist(),
        rollout_log_probs=log_probs.tolist(),
        reward=rewards.of_sample(
            leaf.index, (each.turn.turn_index for each in placed if each.turn and each.mask.any())
        ),
        metadata={
            **(common.extra_metadata or {}),
            **leaf.flags,
            "leaf": leaf.index,
            "turns": [_span(each, kept, rewards) for each in placed if each.turn is not None and each.start < kept],
        },
        weight_versions=_weight_versions(placed),
    )


@dataclass(frozen=True, slots=True)
class _Placed:
    """A segment at its place: ``start`` counts tokens of the response, ``mask``, bool [N], says which tokens train."""

    segment: Segment
    start: int
    mask: NDArray[np.bool_]

    @property
    def turn(self) -> Generation | None:
        return self.segment.turn

    @property
    def log_probs(self) -> LogProbs:
        """float32 [N], 0.0 where nothing trains."""
        recorded = None if self.turn is None else self.turn.log_probs
        if recorded is None:
            return np.zeros(self.mask.size, np.float32)
        return np.where(self.mask, recorded, np.float32(0.0))


def _placed(row: Row, kept: int, filters: ExportFilters, fates: Fates) -> list[_Placed]:
    found: list[_Placed] = []
    start = 0
    for segment in row.segments:
        size = int(segment.ids.size)
        mask = np.zeros(size, np.bool_)
        if segment.turn is not None and segment.trained:
            mask = _settle(segment.turn, kept - start, filters, fates)
        found.append(_Placed(segment, start, mask))
        start += size
    return found


def _settle(turn: Generation, room: int, filters: ExportFilters, fates: Fates) -> NDArray[np.bool_]:
    """Decide about every output token of a turn that trains here, ``room`` tokens of which fit: which train, bool [N]."""
    mask = np.ones(turn.output.size, np.bool_)
    beyond = np.arange(turn.output.size) >= room
    for reason, where in (*filters.refusals(turn), (DropReason.CUT, beyond)):
        fates.drop(turn, reason, mask & where)
        mask &= ~where
    fates.train(turn, mask)
    return mask


def _span(placed: _Placed, kept: int, rewards: RewardSpec) -> dict[str, Any]:
    turn = placed.turn
    assert turn is not None
    end = min(kept, placed.start + int(turn.output.size))
    label = label_of(turn)
    return {
        "turn_index": turn.turn_index,
        "finish_reason": turn.finish_reason,
        "start": placed.start,
        "end": end,
        "trained": bool(placed.mask.any()),
        "reward": rewards.turn_rewards.get(turn.turn_index),
        "label": label and str(label),
        **_sampling(turn.sampling),
        "versions": [_clipped(span, placed.start, end) for span in turn.versions if placed.start + span.start < end],
        **_segments(turn.segments, placed.start, end),
    }


def _segments(segments: Sequence[TurnSegment], start: int, end: int) -> dict[str, Any]:
    starts = [[start + segment.start, segment.seed] for segment in segments if start + segment.start < end]
    return {"segments": starts} if len(starts) > 1 else {}


def _sampling(sampling: Sampling | None) -> dict[str, Any]:
    names = [each.name for each in fields(SamplingParams)]
    if sampling is None:
        return dict.fromkeys(["model", "log_prob_mode", *names, "guide"])
    guide = sampling.guide and {"kind": str(sampling.guide.kind), "text": sampling.guide.text}
    in_force = {name: getattr(sampling.params, name) for name in names}
    return {"model": sampling.model, "log_prob_mode": str(sampling.log_prob_mode), **in_force, "guide": guide}


def _clipped(span: VersionSpan, start: int, end: int) -> list[int]:
    return [start + span.start, min(end, start + span.end), span.version]


def _weight_versions(placed: Iterable[_Placed]) -> list[str]:
    """Versions that sampled a token which trains here, oldest first."""
    found = {
        span.version
        for each in placed
        if each.turn is not None
        for span in each.turn.versions
        if each.mask[span.start : span.end].any()
    }
    return [str(version) for version in sorted(found)]
