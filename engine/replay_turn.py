"""One exported turn, sent to an engine again.

Sampling is random, so an engine cannot be asked "what was the log prob of these tokens?". Two questions can be asked of
any engine, and their answers compared:

*The turn again*: same prompt, same sampling, same seed, same guide. As long as the ids come out as recorded, everything before each
token is as it was, so its log prob must be too. Engines whose seeds do not depend on the batch give the whole turn. A turn that was
continued is asked for in the same parts, each after what was recorded before it.

*One token*: the prompt and the recorded output before it, one token to sample. Only for tokens that were recorded with
clearly more than half of the probability mass: greedy decoding must give just them, with the recorded log prob. Where log
probs are those of the distribution that was drawn from, greedy ones say nothing; then the token is drawn, with the
turn's own sampling, until it comes out.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from engine.differences import Measured
from engine.sample_rows import NO_VERSION, SampleRow, Span
from engine.types import Engine, GenerateRequest, Guide, Ids, LogProbMode, LogProbs, SamplingParams

SESSION = "rollserve-verify"
"""The session name of these generations, as the engine log has it."""

LIKELY = math.log(0.6)
"""Nats. No other token comes near, so rounding does not decide which is the greedy one."""

TRIES = 20
"""Draws of a token that has 0.6 of the mass: it stays away once in 10^8."""


@dataclass(frozen=True, slots=True)
class Target:
    """One turn of one sample. Arrays are over its output, [N]: ids and weight versions int32, recorded log probs float32,
    whether they train bool; ``prompt`` is int32 [P]."""

    sample: int
    span: Span
    prompt: Ids
    output: Ids
    recorded: LogProbs
    trained: NDArray[np.bool_]
    versions: Ids

    @property
    def name(self) -> str:
        return f"sample {self.sample}, turn {self.span.turn_index or 'unknown'}"


@dataclass(slots=True)
class Outcome:
    """What came of it, over the output, [N]: the difference of each log prob, float64, NaN where none was compared."""

    target: Target
    differences: NDArray[np.float64]
    repeated: bool = False
    """The turn was asked for again with everything that had been in force."""
    agreeing: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Tokens that came out as recorded, with all before them in their part, when the turn was generated again."""
    probed: int = 0
    contradicted: int = 0
    other_weights: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Tokens that the engine answered for, but with other weights than those that sampled them."""

    @classmethod
    def of(cls, target: Target) -> Outcome:
        size = target.output.size
        nowhere = np.zeros(size, np.bool_)
        return cls(target, np.full(size, np.nan), agreeing=nowhere, other_weights=nowhere.copy())

    @property
    def is_same(self) -> bool:
        """Whether the whole turn came out as recorded."""
        return bool(self.agreeing.all())

    @property
    def compared(self) -> NDArray[np.bool_]:
        return ~np.isnan(self.differences)

    @property
    def largest(self) -> float:
        """Infinite if the engine contradicted a token; NaN if nothing was compared."""
        if self.contradicted:
            return math.inf
        return float(self.differences[self.compared].max()) if self.compared.any() else math.nan

    def measured(self) -> Measured:
        compared, target = self.compared, self.target
        turns = np.full(int(compared.sum()), target.span.turn_index or 0, np.int32)
        return Measured(self.differences[compared], target.versions[compared], turns)

    def note(self, place: int, log_prob: float, version: int) -> None:
        """The engine gave the recorded token at ``place``, with this log prob, under these weights."""
        target = self.target
        if not target.trained[place]:
            return
        if target.versions[place] not in (NO_VERSION, version):
            self.other_weights[place] = True
            return
        difference = abs(float(target.recorded[place]) - log_prob)
        self.differences[place] = math.inf if math.isnan(difference) else difference


def targets_of(sample: int, row: SampleRow) -> Iterator[Target]:
    """The turns that train in a sample."""
    versions = row.versions
    for span in row.spans:
        part = slice(span.start, span.end)
        if row.trained[part].any():
            start = row.prompt_length + span.start
            output = row.tokens[start : row.prompt_length + span.end]
            yield Target(
                sample, span, row.tokens[:start], output, row.recorded[part], row.trained[part], versions[part]
            )


async def replay_turn(engine: Engine, target: Target, probes: int) -> Outcome:
    """Ask both questions; the second for at most ``probes`` tokens that the first left open. Raises: EngineError."""
    outcome = Outcome.of(target)
    if target.span.is_repeatable and not needs_other_guides(engine, target.span):
        await _repeat(engine, outcome)
    for place in _places_to_probe(outcome, probes):
        await _probe(engine, outcome, place)
    return outcome


def needs_other_guides(engine: Engine, span: Span) -> bool:
    """Whether the turn cannot be asked for again, since the engine does not offer the guide that held it."""
    return span.guide is not None and span.guide.kind not in engine.info.guides


async def _repeat(engine: Engine, outcome: Outcome) -> None:
    span = outcome.target.span
    outcome.repeated = True
    starts = [start - span.start for start, _ in span.parts]
    ends = [*starts[1:], outcome.target.output.size]
    for start, end, (_, seed) in zip(starts, ends, span.parts, strict=True):
        if start < end:
            await _repeat_part(engine, outcome, start, end, seed)


async def _repeat_part(engine: Engine, outcome: Outcome, start: int, end: int, seed: int) -> None:
    """Output tokens ``[start, end)``, as they were asked for."""
    target = outcome.target
    end_ids = _end_ids(target)
    # Where nothing may end the reply there is nothing that could be banned until then.
    held = max(0, target.span.sampling.min_tokens - start) if end_ids else 0
    sampling = replace(target.span.sampling, seed=seed, min_tokens=held)
    prompt = np.concatenate([target.prompt, target.output[:start]])
    answer = await _ask(engine, prompt, end - start, sampling, _lora(engine, target.span), target.span.guide, end_ids)
    size = min(answer.ids.size, end - start)
    differing = np.flatnonzero(answer.ids[:size] != target.output[start : start + size])
    agreeing = int(differing[0]) if differing.size else size
    outcome.agreeing[start : start + agreeing] = True
    for place in range(agreeing):
        outcome.note(start + place, float(answer.log_probs[place]), int(answer.versions[place]))


def _end_ids(target: Target) -> tuple[int, ...]:
    """Samples do not say which tokens end a reply. Only under a guide it matters, where one comes when the grammar is complete:
    there the last token, if it comes once, is taken for one."""
    last = target.output[-1]
    ends = target.span.guide is not None and int((target.output == last).sum()) == 1
    return (int(last),) if ends else ()


def _places_to_probe(outcome: Outcome, probes: int) -> list[int]:
    """Likely tokens beyond those that agree, spread evenly."""
    target = outcome.target
    span = target.span
    if span.is_certain or not span.is_scorable or probes < 1:
        return []
    open_places = target.trained & (target.recorded >= LIKELY)
    open_places[outcome.agreeing] = False
    likely = np.flatnonzero(open_places)
    if likely.size <= probes:
        return [int(place) for place in likely]
    return [int(likely[round(step)]) for step in np.linspace(0, likely.size - 1, probes)]


async def _probe(engine: Engine, outcome: Outcome, place: int) -> None:
    target = outcome.target
    prompt = np.concatenate([target.prompt, target.output[:place]])
    outcome.probed += 1
    for sampling in _single_draws(target.span):
        answer = await _ask(engine, prompt, 1, sampling, _lora(engine, target.span))
        if answer.ids.size and answer.ids[0] == target.output[place]:
            outcome.note(place, float(answer.log_probs[0]), int(answer.versions[0]))
            return
        if answer.ids.size and target.versions[place] not in (NO_VERSION, answer.versions[0]):
            outcome.other_weights[place] = True
            return
    outcome.contradicted += 1


def _single_draws(span: Span) -> Iterator[SamplingParams]:
    if span.mode is LogProbMode.RAW:
        yield SamplingParams(temperature=0.0)
        return
    for seed in range(TRIES):
        yield replace(span.sampling, seed=seed)


def _lora(engine: Engine, span: Span) -> str:
    """The adapter that sampled: one that the engine has, under the name that it was served by."""
    return span.model if span.model in engine.info.loras else ""


@dataclass(frozen=True, slots=True)
class _Answer:
    """Ids and weight versions int32, log probs float32, all [N]."""

    ids: Ids
    log_probs: LogProbs
    versions: Ids


async def _ask(
    engine: Engine,
    prompt: Ids,
    tokens: int,
    sampling: SamplingParams,
    lora: str,
    guide: Guide | None = None,
    end_ids: tuple[int, ...] = (),
) -> _Answer:
    request = GenerateRequest(
        request_id=f"{SESSION}-{secrets.token_hex(8)}",
        prompt_ids=prompt,
        max_tokens=tokens,
        sampling=sampling,
        end_ids=end_ids,
        guide=guide,
        lora=lora,
        session=SESSION,
    )
    async with aclosing(engine.generate(request)) as stream:
        chunks = [chunk async for chunk in stream]
    return _Answer(
        np.concatenate([np.empty(0, np.int32), *(chunk.ids for chunk in chunks)]),
        np.concatenate([np.empty(0, np.float32), *(chunk.log_probs for chunk in chunks)]),
        np.concatenate([np.empty(0, np.int32), *(np.full(chunk.ids.size, chunk.weight_version) for chunk in chunks)]),
    )
