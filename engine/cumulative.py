"""The dialect of TensorRT-LLM's C++ model: what it is sent, and what its answers mean.

Its tensors have the names of our contract, and other semantics (``inflight_batcher_llm`` and ``llmRequest`` of the 1.2 line and
its model's documentation are the source of every line here):

- Ids come as deltas, log probs as the list of all so far. Only its end is new; its length says whether anything was lost.
- An ``end_id`` and its log prob are never returned, so end tokens travel as stop words, which are. The last delta may be empty.
- There is no finish reason. A reply that ends with a stop word has ended by it; one with as many tokens as were asked for, or as
  the context has room for, by its length; any other was cancelled. A word that the limit completes counts as a stop: it is one.
- Without top k and top p it is greedy, so top p is always sent. With a penalty that changes nothing it computes penalties all the
  same, so these are sent where they are meant. Greedy is ``top_k = 1``: a temperature of 0 would divide by it.
- Whether ``min_tokens`` holds back stop words is not known, so it is refused.
- Blocks of the KV cache that were reused are told among the performance figures, in every response.
- It has no control requests: it is ready when Triton says that it is, and its weights are the engine's that was loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from engine.contract import (
    WireTensor,
    check_tokens,
    encode_request,
    encode_scalar,
    floats_of,
    int_of,
    ints_of,
)
from engine.errors import EngineProtocolError, EngineRejected
from engine.types import EngineInfo, Finished, FinishReason, GenerateRequest, Ids, SamplingParams, TokenChunk

INPUTS = (
    "input_ids",
    "input_lengths",
    "request_output_len",
    "stop_words_list",
    "temperature",
    "runtime_top_k",
    "runtime_top_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "return_log_probs",
    "streaming",
    "stop",
    "exclude_input_in_output",
)
"""What a model of this dialect must take."""
OUTPUTS = ("output_ids", "sequence_length", "output_log_probs")
STOP_OUTPUTS = ("output_ids", "sequence_length")
"""A request that asks for neither is an error there."""
REUSED_BLOCKS = "kv_cache_reused_blocks"

_NEUTRAL = SamplingParams()
_WHERE_MEANT = ("repetition_penalty", "presence_penalty", "frequency_penalty")


def encode(request: GenerateRequest, info: EngineInfo) -> list[WireTensor]:
    """The input tensors of one streamed generation. Raises: EngineRejected."""
    sampling = request.sampling
    if sampling.min_tokens:
        raise EngineRejected("min_tokens: TensorRT-LLM's C++ model does not say whether it holds back stop words")
    if sampling.temperature == 0:
        sampling = replace(sampling, temperature=1.0, top_k=1)
    leave_out = {"min_tokens", *(name for name in _WHERE_MEANT if getattr(sampling, name) == getattr(_NEUTRAL, name))}
    sent = [tensor for tensor in encode_request(replace(request, sampling=sampling)) if tensor.name not in leave_out]
    return [*sent, encode_scalar("return_perf_metrics", "BOOL", True)] if info.tokens_per_block else sent


def wanted_outputs(info: EngineInfo) -> tuple[str, ...]:
    return (*OUTPUTS, REUSED_BLOCKS) if info.tokens_per_block else OUTPUTS


class CumulativeReader:
    """What one generation has given so far."""

    def __init__(self, request: GenerateRequest, info: EngineInfo) -> None:
        self._request = request
        self._info = info
        self._words = [(end_id,) for end_id in request.end_ids] + [word for word in request.stop_words if word]
        self._longest = max(map(len, self._words), default=0)
        self._count = 0
        self._tail: Ids = np.empty(0, np.int32)
        self.finished = False

    def accept(self, outputs: Mapping[str, WireTensor], *, final: bool) -> TokenChunk:
        """The response's chunk. Raises: EngineProtocolError."""
        ids, all_log_probs = ints_of(outputs, "output_ids"), floats_of(outputs, "output_log_probs")
        self._count += len(ids)
        told = int_of(outputs, "sequence_length")
        if not (len(ids) == told and len(all_log_probs) == self._count):
            found = (
                f"{len(ids)} new ids of {self._count}, {len(all_log_probs)} log probs and a sequence_length of {told}"
            )
            raise EngineProtocolError(f"one response holds {found}")
        if self._count > self._request.max_tokens:
            raise EngineProtocolError(f"{self._count} tokens came, {self._request.max_tokens} were asked for")
        log_probs = all_log_probs[self._count - len(ids) :]
        if len(ids):
            check_tokens(ids, log_probs, self._info.vocab_size)
            self._tail = np.concatenate([self._tail, ids])[-self._longest :] if self._longest else self._tail
        self.finished = final
        finished = Finished(self._reason(), self._cached_tokens(outputs)) if final else None
        return TokenChunk(ids, log_probs, self._info.weight_version, finished)

    def _reason(self) -> FinishReason:
        tail = self._tail.tolist()
        if any(tail[-len(word) :] == list(word) for word in self._words if len(word) <= self._count):
            return FinishReason.STOP
        room = self._info.max_seq_len - len(self._request.prompt_ids)
        return FinishReason.LENGTH if self._count >= min(self._request.max_tokens, room) else FinishReason.CANCELLED

    def _cached_tokens(self, outputs: Mapping[str, WireTensor]) -> int:
        if not self._info.tokens_per_block:
            return 0
        tokens = int_of(outputs, REUSED_BLOCKS) * self._info.tokens_per_block
        if tokens < 0:
            raise EngineProtocolError(f"the output {REUSED_BLOCKS} is negative")
        return min(tokens, len(self._request.prompt_ids))
