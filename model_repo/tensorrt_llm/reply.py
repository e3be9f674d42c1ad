"""One reply: the engine's updates become tokens of its ``common.generation.Generation``."""

from __future__ import annotations

import asyncio
from typing import Any

from .llm_engine import LlmEngine
from .sampling import is_certain
from .settings import LogProbs
from .tokens import EngineFault, cached_tokens, new_tokens

STOP = "stop"
CANCELLED = "cancelled"
"""The finish reasons that are ours to say; else they come from ``Generation.add``."""


class Reply:
    """``task`` samples it; ``failure`` is why it fails, where the task is cancelled because the engine is over."""

    def __init__(self, generation: Any, loop: asyncio.AbstractEventLoop, weight_version: int) -> None:
        self.generation = generation
        self.weight_version = weight_version
        self.cached_tokens = 0
        self.failure = ""
        self.task: asyncio.Task[str] | None = None
        self._loop = loop
        self._output: Any = None
        self._is_certain = False
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, engine: LlmEngine, weight_version: int) -> str:
        """To the reply's end; its finish reason. Raises: RequestRefused, EngineFault, or what the engine raises."""
        self.weight_version = weight_version
        # TRTLLMSampler gives what a greedy token would have had by chance.
        self._is_certain = engine.features.log_probs is LogProbs.PROCESSED and is_certain(
            self.generation.request.sampling
        )
        self._output = engine.submit(self.generation.request)
        async for update in self._output:
            reason = self._take(update)
            if reason is not None:
                return reason
        raise EngineFault("TensorRT-LLM ended the reply without a word")

    def leave(self) -> None:
        """Free what the reply holds in the engine. It may not have got there, or have left by itself."""
        if self._timer is not None:
            self._timer.cancel()
        # With a failure of the whole engine there is nobody to hear it.
        if self._output is not None and not self._output.finished and not self.failure:
            self._output.abort()

    def _take(self, update: Any) -> str | None:
        generation = self.generation
        self.cached_tokens = max(self.cached_tokens, cached_tokens(update, generation.request.prompt_ids.size))
        output = update.outputs[0]
        now = self._loop.time()
        # Several tokens may come at once (speculation, a stream interval); what follows the reply's end is dropped.
        for token, log_prob in new_tokens(output, len(generation.output_ids)):
            value = 0.0 if self._is_certain else log_prob
            reason: str | None = generation.add(token, value, self.weight_version, now)
            if reason is not None:
                return reason
        if update.finished:
            return self._reason_of(output)
        self._flush_later()
        return None

    def _reason_of(self, output: Any) -> str:
        """The engine ended the reply, and by our own count it is not over."""
        count = len(self.generation.output_ids)
        if output.finish_reason == STOP and self.generation.request.guide is not None:
            return STOP  # nothing may follow in the grammar
        if output.finish_reason == STOP:
            raise EngineFault(
                f"TensorRT-LLM stopped after {count} tokens at one that is no end of this request; the checkpoint's "
                "generation_config.json may name it"
            )
        raise EngineFault(
            f"TensorRT-LLM ended the reply after {count} of {self.generation.request.max_tokens} tokens "
            f"({output.finish_reason}); its max_seq_len may be below the parameter's"
        )

    def _flush_later(self) -> None:
        due = self.generation.flush_at
        if due is not None and self._timer is None:
            self._timer = self._loop.call_at(due, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self.generation.flush(self._loop.time())
        self._flush_later()
