"""What the engine saw and sampled in one turn: exact ids, held once.

A generation does not repeat the ids of the turn before it. It names that turn as its ``base`` and holds what is new:

    prompt_ids = base.ids()[:base_len] ++ given
    ids()      = prompt_ids ++ output

Generations point backwards only, never in a circle. What is the same in many turns of a session (normalised text, labels,
the prompt of siblings) is shared by reference.

**Copies.** Under another head (other tools, say) earlier replies go on as context. A copy holds what a reply is there: the
same ``given`` and ``output`` arrays on another base. It was not sampled there, so it is no turn and never trains;
``origin`` is the turn that it came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from adapter.trajectory.errors import TurnRejected
from adapter.trajectory.reasons import Finding, Reason
from adapter.types import Label, Normalised, Sampling, ScaffoldSpan, TurnRecord, TurnSegment, VersionSpan
from engine.types import Ids, LogProbs

INTERRUPTED = "interrupted"
"""Finish reason of a turn that was cut off and of which the client replayed a part."""

_NO_IDS = np.empty(0, np.int32)

_Item = TypeVar("_Item", np.int32, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """How a turn's request was matched."""

    reason: Reason = Reason.NEW
    findings: tuple[Finding, ...] = ()
    """Messages that differ from their nodes, those left out of which an earlier turn says the same."""
    rendered: int = 0
    """Prompt tokens that the path did not have."""
    rival: Generation | None = field(default=None, repr=False)
    """The turn that the prompt departs from, where it forks."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Generation:
    """One turn of the engine. Arrays are read-only and this object's own: ids int32, log probs float32 or None.

    ``base`` is the turn before this one on its path, ``base_len`` the length of the common prefix of ``base.ids()`` and
    this turn's prompt; a turn that begins a path may name any turn under its head, only to share its ids.
    """

    turn_index: int
    """Counted from 1 in its session, in the order of commits; 0 while it is interrupted. A copy has its origin's."""
    base: Generation | None = field(repr=False)
    base_len: int
    prompt_len: int
    """Tokens of the prompt."""
    length: int
    """Tokens of prompt and output."""
    given: Ids
    output: Ids
    log_probs: LogProbs | None
    finish_reason: str
    ill_formed: bool
    untrainable: str | None
    versions: tuple[VersionSpan, ...]
    segments: tuple[TurnSegment, ...]
    sampling: Sampling | None
    cached_tokens: int
    started_at: float
    finished_at: float
    number: int | None = None
    """Counted in the order of starts; what handles refer to."""
    replied: int = 0
    """Tokens at the end of the prompt that are the beginning of the reply, where it goes on from one."""
    scaffold: tuple[ScaffoldSpan, ...] = ()
    """Spans over ``given``."""
    normalised: tuple[Normalised, ...] = ()
    label: Label | None = None
    matched: Matched = field(default_factory=Matched, repr=False)
    origin: Generation | None = field(default=None, repr=False)
    """The turn that this is a copy of."""

    @property
    def model(self) -> str:
        """The served name of the weights that sampled it; empty where that was not recorded."""
        return "" if self.sampling is None else self.sampling.model

    @classmethod
    def record(
        cls,
        turn: TurnRecord,
        base: Generation | None,
        turn_index: int,
        *,
        base_len: int | None = None,
        number: int | None = None,
        matched: Matched | None = None,
        spans_from: int = 0,
        twin: Generation | None = None,
    ) -> Generation:
        """Take a valid turn into the tree, keeping of its prompt what ``base`` does not have already.

        ``base_len`` is known to be shared, None means as much as is. The turn's scaffold spans count from token
        ``spans_from`` of its prompt. ``twin`` has the same prompt.
        """
        if twin is not None:
            base, base_len = twin.base, twin.base_len
        elif base_len is None:
            base_len = 0 if base is None else shared_prefix(base.ids(), turn.prompt_ids)
        prompt_len = int(turn.prompt_ids.size)
        log_probs = turn.output_log_probs
        return cls(
            turn_index=turn_index,
            base=base,
            base_len=base_len,
            prompt_len=prompt_len,
            length=prompt_len + int(turn.output_ids.size),
            given=owned(turn.prompt_ids[base_len:]) if twin is None else twin.given,
            output=owned(turn.output_ids),
            log_probs=None if log_probs is None or not log_probs.size else owned(log_probs),
            finish_reason=str(turn.finish_reason),
            ill_formed=turn.ill_formed,
            untrainable=turn.untrainable,
            versions=turn.versions,
            segments=turn.segments,
            sampling=turn.sampling,
            cached_tokens=turn.cached_tokens,
            started_at=turn.started_at,
            finished_at=turn.finished_at,
            number=number,
            replied=turn.replied,
            scaffold=_moved(turn.scaffold, spans_from - base_len),
            normalised=base.normalised if base and base.normalised == turn.normalised else turn.normalised,
            label=base.label if base and base.label == turn.label else turn.label,
            matched=matched or Matched(rendered=prompt_len),
        )

    def cut(self, tokens: int, turn_index: int = 0) -> Generation:
        """This interrupted turn as if it had ended after ``tokens`` sampled tokens."""
        return replace(
            self,
            turn_index=turn_index,
            length=self.prompt_len + tokens,
            output=owned(self.output[:tokens]),
            log_probs=None if self.log_probs is None else owned(self.log_probs[:tokens]),
            versions=_cut_spans(self.versions, tokens),
            segments=_cut_segments(self.segments, tokens),
            finish_reason=INTERRUPTED,
        )

    def as_record(self, tokens: int, spans_from: int) -> TurnRecord:
        """The turn as it would have been recorded had it ended after ``tokens``; scaffold spans count from ``spans_from``."""
        cut = self.cut(tokens)
        return TurnRecord(
            prompt_ids=cut.prompt_ids(),
            output_ids=cut.output,
            output_log_probs=cut.log_probs,
            finish_reason=cut.finish_reason,
            ill_formed=cut.ill_formed,
            untrainable=cut.untrainable,
            versions=cut.versions,
            segments=cut.segments,
            sampling=cut.sampling,
            cached_tokens=cut.cached_tokens,
            started_at=cut.started_at,
            finished_at=cut.finished_at,
            replied=cut.replied,
            scaffold=_moved(self.scaffold, self.base_len - spans_from),
            normalised=cut.normalised,
            label=cut.label,
        )

    def copy_onto(self, base: Generation | None, base_len: int, given: Ids, output: Ids | None = None) -> Generation:
        """This reply, or that much of it, as context after another prompt."""
        output = self.output if output is None else output
        prompt_len = base_len + int(given.size)
        return replace(
            self,
            base=base,
            base_len=base_len,
            prompt_len=prompt_len,
            length=prompt_len + int(output.size),
            given=given,
            output=output,
            log_probs=None,
            versions=_cut_spans(self.versions, int(output.size)),
            segments=_cut_segments(self.segments, int(output.size)),
            scaffold=self.scaffold if given is self.given else (),
            origin=self.origin or self,
        )

    def prompt_ids(self) -> Ids:
        """The prompt as it was sent: int32 [prompt_len], a new array."""
        return self._prefix(self.prompt_len)

    def ids(self) -> Ids:
        """Prompt and output: int32 [length], a new array."""
        return self._prefix(self.length)

    def context_after(self, previous: Generation) -> list[Ids] | None:
        """What lies between ``previous`` and this turn's output, if the prompt extends ``previous.ids()``; else None."""
        parts = [self.given]
        turn = self
        while turn.base is not None and turn.base_len == turn.base.length:
            if turn.base is previous:
                parts.reverse()
                return parts
            turn = turn.base
            if turn.origin is None:
                return None
            parts += [turn.output, turn.given]
        return None

    def _prefix(self, end: int) -> Ids:
        parts: list[Ids] = [_NO_IDS]
        turn: Generation | None = self
        while turn is not None and end > 0:
            base_len, prompt_len = turn.base_len, turn.prompt_len
            if end > prompt_len:  # a slice costs more than most pieces do to copy
                parts.append(turn.output if end == turn.length else turn.output[: end - prompt_len])
            if end > base_len:
                parts.append(turn.given if end >= prompt_len else turn.given[: end - base_len])
                end = base_len
            turn = turn.base
        parts.reverse()
        return np.concatenate(parts)


def shared_prefix(left: Ids, right: Ids) -> int:
    """Length of the common prefix."""
    size = min(left.size, right.size)
    differing = left[:size] != right[:size]
    first = int(differing.argmax()) if size else 0
    return first if size and differing[first] else size


def check_turn(turn: TurnRecord, *, require_log_probs: bool) -> None:
    """Refuse a record that contradicts itself.

    Raises: TurnRejected, which names the field: ids that are not one-dimensional, log probs that are not as many as
    the output ids (none at all is allowed unless they are required), version spans that do not cover the output end
    to end, scaffold spans out of order or beyond the prompt.
    """
    count = turn.output_ids.size
    log_probs = turn.output_log_probs
    for name, array in (("prompt_ids", turn.prompt_ids), ("output_ids", turn.output_ids)):
        if array.ndim != 1:
            raise TurnRejected(f"{name} has {array.ndim} dimensions, not 1")
    if log_probs is not None and log_probs.size and log_probs.shape != (count,):
        raise TurnRejected(f"output_log_probs has shape {log_probs.shape}, but there are {count} output_ids")
    if require_log_probs and count and (log_probs is None or not log_probs.size):
        raise TurnRejected(f"output_log_probs is missing for {count} output_ids")
    if turn.versions and not _covers(turn.versions, count):
        raise TurnRejected(f"versions do not cover the {count} output_ids end to end: {turn.versions}")
    if not _in_order(turn.scaffold, turn.prompt_ids.size):
        raise TurnRejected(f"scaffold spans are out of order or beyond the prompt: {turn.scaffold}")


def _covers(spans: Sequence[VersionSpan], count: int) -> bool:
    edges = [0, *(span.end for span in spans)]
    return edges[-1] == count and all(span.start == edge < span.end for span, edge in zip(spans, edges, strict=False))


def _in_order(spans: Sequence[ScaffoldSpan], size: int) -> bool:
    edges = [edge for span in spans for edge in (span.start, span.end)]
    return edges == sorted(edges) and all(0 <= edge <= size for edge in edges)


def _moved(spans: tuple[ScaffoldSpan, ...], shift: int) -> tuple[ScaffoldSpan, ...]:
    """The spans ``shift`` tokens later; what would lie before token 0 is left out."""
    if not shift:
        return spans
    moved = (ScaffoldSpan(max(0, span.start + shift), span.end + shift, span.kind) for span in spans)
    return tuple(span for span in moved if span.start < span.end)


def _cut_spans(spans: Sequence[VersionSpan], end: int) -> tuple[VersionSpan, ...]:
    return tuple(VersionSpan(span.start, min(span.end, end), span.version) for span in spans if span.start < end)


def _cut_segments(segments: tuple[TurnSegment, ...], end: int) -> tuple[TurnSegment, ...]:
    kept = tuple(segment for segment in segments if segment.start < end)
    return segments if len(kept) == len(segments) else kept


def owned(array: NDArray[_Item]) -> NDArray[_Item]:
    """A copy that nobody can write to. A view would keep the whole prompt or message buffer behind it alive."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy
