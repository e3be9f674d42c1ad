"""An ``Engine`` in memory, for unit tests of what stands in front of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.errors import EngineError
from engine.types import EngineInfo, Finished, FinishReason, GenerateRequest, LogProbMode, TokenChunk

INFO = EngineInfo(model="fake", log_prob_mode=LogProbMode.RAW, max_seq_len=4096, vocab_size=152_000, weight_version=3)


@dataclass
class Answer:
    """One generation: a chunk for each list of ids, then the end. ``error`` is raised after the chunks; ``hold`` is awaited before
    chunk number ``hold_before``."""

    chunks: Sequence[Sequence[int]]
    reason: FinishReason = FinishReason.STOP
    log_probs: Sequence[float] | None = None
    cached_tokens: int = 0
    error: EngineError | None = None
    hold: asyncio.Event | None = None
    hold_before: int = 0


@dataclass
class FakeEngine:
    """Gives its answers in order; keeps the requests; ``closed`` counts generations that were closed before their end."""

    answers: list[Answer] = field(default_factory=list)
    info: EngineInfo = INFO
    requests: list[GenerateRequest] = field(default_factory=list)
    closed: int = 0
    unavailable: EngineError | None = None

    async def connect(self) -> None:
        if self.unavailable is not None:
            raise self.unavailable

    async def check_ready(self) -> None:
        await self.connect()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        self.requests.append(request)
        answer = self.answers.pop(0)
        ended = False
        try:
            for chunk in self._chunks(answer):
                if answer.hold is not None and chunk[0] == answer.hold_before:
                    await answer.hold.wait()
                ended = chunk[1].finished is not None
                yield chunk[1]
            if answer.error is not None:
                raise answer.error
        except EngineError:
            ended = True
            raise
        finally:
            self.closed += not ended

    def _chunks(self, answer: Answer) -> list[tuple[int, TokenChunk]]:
        made = []
        position = 0
        for number, ids in enumerate(answer.chunks):
            last = number == len(answer.chunks) - 1 and answer.error is None
            log_probs = [-0.5] * len(ids)
            if answer.log_probs is not None:
                log_probs = list(answer.log_probs[position : position + len(ids)])
            position += len(ids)
            finished = Finished(answer.reason, answer.cached_tokens) if last else None
            version = self.info.weight_version
            made.append(
                (number, TokenChunk(np.array(ids, np.int32), np.array(log_probs, np.float32), version, finished))
            )
        return made
