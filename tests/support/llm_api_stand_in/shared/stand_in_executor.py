"""The stand-in's worker: a thread that samples one token for every live request in each step.

By ``tensorrt_llm/_torch/pyexecutor/sampler.py``: ``min_tokens`` bans the index ``end_id``, whatever it is; raw log probs are those
after that and after penalties; without
temperature, top_k and top_p a request is greedy; the end token is in the output. Blocks of a prompt can be used again when the
request that made them has ended, by requests of the same salt and adapter.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from stand_in_network import Network
from stand_in_results import Logprob, RequestOutput, Response
from torch import Tensor

GLOBAL_SEED = 42


@dataclass(frozen=True, slots=True)
class Traits:
    """Where versions differ."""

    has_penalties: bool
    has_seeds: bool
    has_logprobs_mode: bool
    zero_logprobs_is_sampled: bool
    logprobs_have_sampled: bool = True
    is_cpp_sampler: bool = False


@dataclass
class Request:
    result: RequestOutput
    prompt: list[int]
    params: Any
    reuse_key: tuple[Any, ...]
    adapter: Tensor | None
    generator: torch.Generator
    output: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    unsent: list[int] = field(default_factory=list)
    unsent_log_probs: list[Any] = field(default_factory=list)

    @property
    def end_id(self) -> int:
        return -1 if self.params.ignore_eos else int(self.params.end_id)


class Executor:
    """``crash`` ends the thread as a dead worker would: nothing more is answered."""

    def __init__(
        self, network: Network, traits: Traits, tokens_per_block: int, has_reuse: bool, max_seq_len: int
    ) -> None:
        self.network = network
        self.stream_interval = 1
        self._traits = traits
        self._block = tokens_per_block
        self._has_reuse = has_reuse
        self._max_seq_len = max_seq_len
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._live: dict[int, Request] = {}
        self._blocks: set[tuple[Any, ...]] = set()
        self._generator = torch.Generator().manual_seed(GLOBAL_SEED)
        self._next_id = 0
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="stand-in-worker", daemon=True)
        self._thread.start()

    def is_shutdown(self) -> bool:
        return not self._thread.is_alive()

    def crash(self) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        self._calls.put(None)
        self._thread.join()

    def submit(
        self, prompt: list[int], params: Any, salt: str | None, lora_id: int, adapter: Tensor | None
    ) -> RequestOutput:
        self._next_id += 1
        result = RequestOutput(self, self._next_id, prompt, params)
        generator = self._generator
        if self._traits.has_seeds:
            generator = torch.Generator().manual_seed((params.seed or 0) % 2**63)
        request = Request(result, prompt, params, (salt, lora_id), adapter, generator)
        self._calls.put(lambda: self._begin(request))
        return result

    def abort_request(self, request_id: int) -> None:
        self._calls.put(lambda: self._end(request_id, "cancelled"))

    def call(self, work: Callable[[], None]) -> None:
        """Between two steps, in the worker's thread; back when it is done."""
        done = threading.Event()
        self._calls.put(lambda: (work(), done.set())[1])
        done.wait()

    def forget_blocks(self) -> None:
        self._blocks.clear()

    def _run(self) -> None:
        while not self._ending:
            try:
                while True:
                    call = self._calls.get(block=not self._live)
                    if call is None:
                        return
                    call()
            except queue.Empty:
                pass
            for request in list(self._live.values()):
                self._step(request)

    def _begin(self, request: Request) -> None:
        if self._has_reuse:
            # The last token is always computed: it gives the first logits.
            full = (len(request.prompt) - 1) // self._block
            hits = [n for n in range(1, full + 1) if self._block_key(request, n) in self._blocks]
            request.cached_tokens = len(hits) * self._block
        self._live[request.result.request_id] = request

    def _block_key(self, request: Request, blocks: int) -> tuple[Any, ...]:
        return (request.reuse_key, tuple((request.prompt + request.output)[: blocks * self._block]))

    def _end(self, request_id: int, reason: str) -> None:
        request = self._live.pop(request_id, None)
        if request is not None:
            request.result.put(Response(finish_reason=reason, cached_tokens=request.cached_tokens))

    def _step(self, request: Request) -> None:
        raw = self._changed_in_place(self.network.logits(request.prompt + request.output, request.adapter), request)
        processed = self._processed(raw.clone(), request.params)
        token = int(torch.multinomial(processed.softmax(-1), 1, generator=request.generator))
        request.output.append(token)
        reason = self._finish_reason(request, token)
        if reason is not None:
            del self._live[request.result.request_id]
            full = len(request.prompt + request.output) // self._block
            self._blocks |= {self._block_key(request, n) for n in range(1, full + 1)}
        mode = getattr(request.params, "logprobs_mode", "raw")
        entry = self._log_probs(raw, processed if mode == "processed" else raw, token, request.params)
        request.unsent.append(token)
        request.unsent_log_probs += entry
        if reason is not None or len(request.output) % self.stream_interval == 1 % self.stream_interval:
            request.result.put(Response(request.unsent, request.unsent_log_probs, reason, request.cached_tokens))
            request.unsent, request.unsent_log_probs = [], []

    def _finish_reason(self, request: Request, token: int) -> str | None:
        if token == request.end_id or token in (request.params.stop_token_ids or []):
            return "stop"
        is_full = len(request.prompt) + len(request.output) >= self._max_seq_len
        return "length" if len(request.output) >= request.params.max_tokens or is_full else None

    def _changed_in_place(self, logits: Tensor, request: Request) -> Tensor:
        """Before log probs are taken, raw ones too."""
        if len(request.output) < (request.params.min_tokens or 0):
            logits[request.end_id] = -torch.inf
        if self._traits.has_penalties:
            _penalise(logits, request.prompt, request.output, request.params)
        return logits

    def _processed(self, logits: Tensor, params: Any) -> Tensor:
        is_greedy = params.temperature is None and params.top_k is None and params.top_p is None
        if is_greedy or params.top_k == 1:
            return torch.full_like(logits, -torch.inf).index_fill_(0, logits.argmax(), 0.0)
        logits /= 1.0 if params.temperature is None else params.temperature
        if params.top_k:
            logits[logits < logits.topk(params.top_k).values[-1]] = -torch.inf
        if params.top_p is not None and params.top_p < 1:
            ordered = logits.softmax(-1).sort(descending=True)
            beyond = ordered.values.cumsum(0) - ordered.values >= params.top_p
            logits[ordered.indices[beyond]] = -torch.inf
        return logits

    def _log_probs(self, raw: Tensor, logits: Tensor, token: int, params: Any) -> list[Any]:
        count = params.logprobs
        if count is None or (count == 0 and not self._traits.zero_logprobs_is_sampled):
            return []
        if self._traits.is_cpp_sampler:
            temperature = 1.0 if params.temperature is None else params.temperature
            logits = raw / temperature
        log_probs = logits.log_softmax(-1)
        own = log_probs[token].item()
        if count == 0 and getattr(params, "logprobs_simple_format", False):
            return [own]
        best = log_probs.topk(count) if count else None
        entry = {int(i): Logprob(v.item(), n) for n, (v, i) in enumerate(zip(*best, strict=True), 1)} if best else {}
        return [entry | {token: Logprob(own)} if self._traits.logprobs_have_sampled else entry]


def _penalise(logits: Tensor, prompt: list[int], output: list[int], params: Any) -> None:
    seen = torch.tensor(sorted(set(prompt + output)))
    if (repetition := params.repetition_penalty) not in (None, 1.0):
        values = logits[seen]
        logits[seen] = torch.where(values > 0, values / repetition, values * repetition)
    counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=len(logits))
    logits -= (params.presence_penalty or 0.0) * (counts > 0) + (params.frequency_penalty or 0.0) * counts
