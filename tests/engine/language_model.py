"""A language model of fifty tokens as an ``Engine``: what it says depends on every id before, and nothing else.

It is written with loops over numbers, apart from everything that it is used to test.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from engine.errors import EngineError, EngineRejected
from engine.types import (
    EngineInfo,
    Finished,
    FinishReason,
    GenerateRequest,
    Guide,
    GuideKind,
    LogProbMode,
    SamplingParams,
    TokenChunk,
)

VOCAB = 50


@dataclass
class LanguageModel:
    """``repeats`` false: a seed does not decide what is drawn. ``shift`` is added to each log prob it reports. ``error`` is
    raised by requests after the first ``good``. The text of a guide is the JSON array of the ids that may come."""

    mode: LogProbMode = LogProbMode.RAW
    repeats: bool = True
    weight_version: int = 3
    shift: float = 0.0
    ignores_prompt: bool = False
    error: EngineError | None = None
    good: int = 0
    guides: frozenset[GuideKind] = frozenset()
    requests: list[GenerateRequest] = field(default_factory=list)

    @property
    def info(self) -> EngineInfo:
        return EngineInfo("fifty", self.mode, 4096, VOCAB, self.weight_version, self.guides)

    async def connect(self) -> None:
        return None

    async def check_ready(self) -> None:
        return None

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        self.requests.append(request)
        if self.error is not None and len(self.requests) > self.good:
            raise self.error
        if request.sampling.min_tokens > request.max_tokens:
            raise EngineRejected("min_tokens is above request_output_len")
        prompt = [] if self.ignores_prompt else request.prompt_ids.tolist()
        ids, log_probs = self.sample(prompt, request.max_tokens, request.sampling, request.guide)
        half = len(ids) // 2
        for part, finished in ((slice(0, half), None), (slice(half, None), Finished(FinishReason.LENGTH, 0))):
            yield TokenChunk(
                np.array(ids[part], np.int32), np.array(log_probs[part], np.float32), self.weight_version, finished
            )

    def sample(
        self, prompt: Sequence[int], count: int, sampling: SamplingParams, guide: Guide | None = None
    ) -> tuple[list[int], list[float]]:
        """``count`` tokens after ``prompt`` with the log probs that the engine reports."""
        ids: list[int] = []
        log_probs: list[float] = []
        entropy = [] if self.repeats else [len(self.requests)]
        for position in range(count):
            logits = self.logits([*prompt, *ids])
            drawn_from = distribution(logits + _mask(guide), sampling)
            generator = np.random.default_rng([sampling.seed % 2**32, position, *entropy])
            token = int(generator.choice(VOCAB, p=drawn_from))
            of = drawn_from if self.mode is LogProbMode.PROCESSED else distribution(logits, SamplingParams())
            ids.append(token)
            log_probs.append(float(np.log(of[token])) + self.shift)
        return ids, log_probs

    def logits(self, prefix: Sequence[int]) -> np.ndarray:
        state = zlib.crc32(np.array(prefix, np.int64).tobytes()) + self.weight_version
        return 3.0 * np.random.default_rng(state).standard_normal(VOCAB)


def _mask(guide: Guide | None) -> np.ndarray:
    mask = np.zeros(VOCAB)
    if guide is not None:
        mask[[token for token in range(VOCAB) if token not in json.loads(guide.text)]] = -1e9
    return mask


def distribution(logits: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    """What is drawn from: temperature, then top_k, then top_p; float64 [vocabulary], sums to 1."""
    if sampling.temperature == 0:
        return np.eye(len(logits))[int(np.argmax(logits))]
    weights = np.exp((logits - logits.max()) / sampling.temperature)
    order = sorted(range(len(weights)), key=lambda token: -weights[token])
    kept = order[: sampling.top_k or len(order)]
    total, mass, nucleus = sum(weights[token] for token in kept), 0.0, []
    for token in kept:
        if mass >= sampling.top_p * total and nucleus:
            break
        nucleus.append(token)
        mass += weights[token]
    return np.array([weights[token] / mass if token in nucleus else 0.0 for token in range(len(weights))])


def sample_of(
    model: LanguageModel, turns: int = 3, tokens: int = 12, guide: Guide | None = None, **sampling: Any
) -> dict[str, Any]:
    """One exported sample of ``turns`` turns, with four tokens of context between them."""
    prompt = [7, 1, 30, 2, 44, 19, 8]
    row, mask, recorded, spans = list(prompt), [], [], []
    for turn in range(1, turns + 1):
        params = SamplingParams(**{"seed": 1000 + turn, **sampling})
        ids, log_probs = model.sample(row, tokens, params, guide)
        start = len(row) - len(prompt)
        spans.append(
            {name: getattr(params, name) for name in SamplingParams.__dataclass_fields__}
            | {"turn_index": turn, "start": start, "end": start + tokens, "trained": True}
            | {"log_prob_mode": str(model.mode), "versions": [[start, start + tokens, model.weight_version]]}
            | {"guide": guide and asdict(guide)}
        )
        context = [3, turn, 5, 6] if turn < turns else []
        row += [*ids, *context]
        mask += [1] * tokens + [0] * len(context)
        recorded += np.float32(log_probs).tolist() + [0.0] * len(context)
    return {
        "tokens": row,
        "response_length": len(mask),
        "loss_mask": mask,
        "rollout_log_probs": recorded,
        "metadata": {"turns": spans},
    }
