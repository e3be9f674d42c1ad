"""The one place that knows transformers' continuous batching: a set of requests that all advance by one forward pass.

The library's own manager runs its loop in a thread of its own, where a request's end cannot be tied to one step: end
tokens are fixed beforehand, a cancelled request never reports an end, and an exception leaves the rest hanging. So its
batch processor (scheduler, paged KV cache with prefix sharing, preemption) is stepped from our loop, synchronously:
nothing is in flight between two steps, so adding, removing and swapping weights there is safe, and no token is ever
computed beyond a request's end.

Internals used, all of transformers 5.24.0 (``TRANSFORMERS_VERSION``, checked at load):

- ``init_continuous_batching`` (public) for the resolved configuration, and its manager's ``_create_batch_processor``;
- of the processor: ``prepare_next_batch``, ``_generation_step``, ``update_batch``, and the parts that a ``ModelRunner``
  is made of, to put ``_Runner`` in its place, whose ``_sample`` draws with our sampler;
- of its ``inputs_and_outputs``: ``requests_in_batch``, in the order of the logits' rows;
- of its scheduler: ``add_waiting_request``, ``set_request_cancellation`` and ``clear_cancelled_requests``, which drop a
  request and free its blocks whether it waits or runs, ``active_requests``, ``waiting_requests``, and
  ``block_new_requests``, which the library forgets to clear when the request that it waits for is cancelled;
- of its cache: ``reset``, ``num_blocks``, ``compute_free_capacity``;
- ``RequestState``, and its ``position_offset`` (tokens whose keys and values are in the cache).

Requests are added without a token limit and without end tokens: the library never ends one, we do.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Protocol

from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.model_runner import ModelRunner
from transformers.generation.continuous_batching.requests import RequestState

from .settings import CacheSettings, SettingsError

TRANSFORMERS_VERSION = "5.24.0"


class RowSampler(Protocol):
    """Who draws the tokens of a step."""

    def scheduled(self, key: str, cached_tokens: int) -> None:
        """A request takes part in a step; ``cached_tokens`` of its tokens were in the KV cache before."""
        ...

    def draw(self, keys: Sequence[str], logits: Tensor) -> Tensor:
        """The next token of each request, int64 [n]. ``logits`` float32 [n, V] are the model's own."""
        ...


class Batch:
    """Requests by key. Used from one thread."""

    def __init__(self, model: Any, settings: CacheSettings, max_seq_len: int, sampler: RowSampler) -> None:
        """Raises: SettingsError, if the cache cannot hold ``max_seq_len`` tokens or this is another transformers."""
        check_library()
        self._model = model
        manager = model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
            continuous_batching_config=_library_config(settings),
        )
        self._processor = manager._create_batch_processor()
        self._processor.model_runner = _Runner(self._processor, sampler)
        capacity = self._processor.cache.num_blocks * settings.page_size
        if capacity < max_seq_len:
            raise SettingsError(f"the KV cache holds {capacity} tokens, fewer than max_seq_len {max_seq_len}")

    def add(self, key: str, prompt_ids: list[int]) -> None:
        """It waits until it fits."""
        self._processor.scheduler.add_waiting_request(RequestState(key, prompt_ids, max_new_tokens=None))

    def remove(self, key: str) -> None:
        """Free its blocks now; full ones stay as reusable prefixes."""
        scheduler = self._processor.scheduler
        scheduler.set_request_cancellation(key)
        scheduler.clear_cancelled_requests()
        scheduler.block_new_requests = False

    def step(self) -> None:
        """One forward pass over as many requests as fit. There must be a request.

        Raises: whatever breaks in the library or the model; the batch is unusable then.
        """
        if not self._processor.prepare_next_batch():
            raise RuntimeError("requests are waiting, but the scheduler runs none of them")
        self._processor._generation_step(self._model)
        self._processor.update_batch()

    def forget_prefixes(self) -> None:
        """Drop the whole KV cache. There must be no request."""
        self._processor.cache.reset()

    def figures(self) -> dict[str, int]:
        """What it holds now."""
        cache = self._processor.cache
        return {
            "running": len(self._processor.scheduler.active_requests),
            "waiting": len(self._processor.scheduler.waiting_requests),
            "kv_blocks": cache.num_blocks,
            "kv_blocks_free": round(cache.compute_free_capacity() * cache.num_blocks),
        }


class _Runner(ModelRunner):
    """The library's runner with our way to draw a token."""

    def __init__(self, processor: Any, sampler: RowSampler) -> None:
        super().__init__(
            logit_processor=processor.logit_processor,
            cb_config=processor.cb_config,
            inputs_and_outputs=processor.inputs_and_outputs,
            cache=processor.cache,
            do_sample=False,
            return_logprobs=False,
        )
        self._sampler = sampler

    def _sample(self, scores: Tensor, output_ids: Tensor) -> None:
        """``scores`` float32 [1, m, V]: first the rows of the requests that get a token, in order, then padding."""
        requests = self.inputs_and_outputs.requests_in_batch
        for request in requests:
            self._sampler.scheduled(request.state.request_id, request.state.position_offset - request.query_length)
        keys = [request.state.request_id for request in requests if request.has_new_token]
        if keys:
            output_ids[0, : len(keys)].copy_(self._sampler.draw(keys, scores[0, : len(keys)]))


def check_library() -> None:
    """Raises: SettingsError, unless transformers is the version whose internals are used here."""
    installed = version("transformers")
    if installed != TRANSFORMERS_VERSION:
        raise SettingsError(
            f"this model is written for transformers {TRANSFORMERS_VERSION}, here is {installed}: "
            f"pip install transformers=={TRANSFORMERS_VERSION}"
        )


def _library_config(settings: CacheSettings) -> ContinuousBatchingConfig:
    """Synchronous and without graphs: our sampler reads and changes Python state in each step."""
    return ContinuousBatchingConfig(
        page_size=settings.page_size,
        num_blocks=settings.num_blocks,
        max_batch_tokens=settings.max_batch_tokens,
        max_requests_per_batch=settings.max_batch_requests,
        max_blocks_per_request=0,
        use_async_batching=False,
        use_cuda_graph=False,
        auto_switch_to_flash=False,
        return_logprobs=False,
    )
