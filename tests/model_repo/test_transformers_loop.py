"""The generation loop over a tiny random model: batching, prefixes, ends, preemption. No server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from model_repo.common.control import ControlOp
from model_repo.transformers.batch import Batch
from model_repo.transformers.settings import CacheSettings, SettingsError
from tests.model_repo.tiny_transformers import (
    MAX_SEQ_LEN,
    PAGE,
    VOCAB,
    CountingSlots,
    Served,
    one_thread,
    prompt_of,
    scored,
    serving,
    tiny_model,
)


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    with serving() as start:
        yield start


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_p": 0.9}, {"repetition_penalty": 1.5, "top_k": 5}])
def test_log_probs_are_those_of_a_plain_pass_whatever_the_sampling(serve: Any, sampling: dict[str, Any]) -> None:
    served, prompt = serve(), prompt_of(1, 30)
    reply = served.generate(prompt, 40, **sampling)
    assert len(reply.ids) == len(reply.log_probs) == 40
    assert reply.log_probs == pytest.approx(scored(served.model, prompt, reply.ids), abs=1e-4)
    changed = [*prompt[:-1], (prompt[-1] + 1) % VOCAB]
    assert reply.log_probs != pytest.approx(scored(served.model, changed, reply.ids), abs=1e-3)


def test_a_request_gets_the_same_ids_in_any_company(serve: Any) -> None:
    served, prompts = serve(), [prompt_of(seed, 20 + 13 * seed) for seed in range(6)]
    together = [served.send(prompt, 40, seed=seed, temperature=0.9)[0] for seed, prompt in enumerate(prompts)]
    for inbox in together:
        inbox.wait()
    for seed, prompt in enumerate(prompts):
        alone = served.generate(prompt, 40, seed=seed, temperature=0.9)
        assert alone.ids == together[seed].ids
    assert served.generate(prompts[0], 40, seed=99, temperature=0.9).ids != together[0].ids


def test_preempted_requests_go_on_with_the_same_ids_and_log_probs(serve: Any) -> None:
    served, prompts = serve(num_blocks=16), [prompt_of(seed, 15) for seed in range(4)]
    inboxes = [served.send(prompt, 100, seed=seed)[0] for seed, prompt in enumerate(prompts)]
    for inbox in inboxes:
        inbox.wait()
    assert max(served.slots.fresh_starts.values()) > 1, "the cache was large enough for all"
    roomy = serve()
    for seed, (prompt, inbox) in enumerate(zip(prompts, inboxes, strict=True)):
        assert inbox.ids == roomy.generate(prompt, 100, seed=seed).ids
        assert inbox.log_probs == pytest.approx(scored(served.model, prompt, inbox.ids), abs=1e-4)


class ZeroSampler:
    """Draws token 0 for everyone; knows who took part in the last step."""

    def __init__(self) -> None:
        self.stepped: set[str] = set()

    def scheduled(self, key: str, cached_tokens: int) -> None:
        self.stepped.add(key)

    def draw(self, keys: Sequence[str], logits: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(keys), dtype=torch.int64)


def test_a_preempted_request_goes_on_when_the_others_are_removed() -> None:
    with one_thread():
        _preempt_and_remove()


def _preempt_and_remove() -> None:
    sampler = ZeroSampler()
    batch = Batch(tiny_model(), CacheSettings(PAGE, 16, 64, 16), MAX_SEQ_LEN, sampler)
    for key in "abc":
        batch.add(key, prompt_of(ord(key), 15))
    batch.step()
    assert sampler.stepped == set("abc")
    while not batch.figures()["waiting"]:
        sampler.stepped.clear()
        batch.step()
    running = set(sampler.stepped)
    preempted = set("abc") - running
    for key in running:
        batch.remove(key)
    sampler.stepped.clear()
    batch.step()
    assert sampler.stepped == preempted != set()


def test_a_long_prompt_is_prefilled_in_pieces(serve: Any) -> None:
    served, prompt = serve(max_batch_tokens=24), prompt_of(1, 200)
    reply = served.generate(prompt, 20)
    assert reply.log_probs == pytest.approx(scored(served.model, prompt, reply.ids), abs=1e-4)
    assert served.stats()["steps"] >= 200 // 24 + 20


def test_a_prefix_is_taken_from_the_cache_until_it_is_flushed(serve: Any) -> None:
    served, prompt = serve(), prompt_of(1, 70)
    first = served.generate(prompt, 5)
    again = served.generate(prompt, 5)
    longer = served.generate([*prompt, *first.ids, *prompt_of(2, 30)], 5)
    assert (first.cached_tokens, again.cached_tokens, longer.cached_tokens) == (0, 64, 64)
    assert again.ids == first.ids
    assert served.control(ControlOp.FLUSH) == ({"op": "flush", "weight_version": 3}, None)
    assert served.generate(prompt, 5).cached_tokens == 0


def test_end_tokens_end_the_reply_and_stay_in_it(serve: Any) -> None:
    served, prompt = serve(), prompt_of(1, 10)
    free = served.generate(prompt, 40).ids
    for end in (free[5], free[11]):
        reply = served.generate(prompt, 40, end_ids=(end, VOCAB - 1))
        assert reply.ids == free[: free.index(end) + 1]
        assert reply.finish_reason == "stop"
        assert len(reply.log_probs) == len(reply.ids)


def test_a_stop_word_ends_the_reply_without_a_token_more(serve: Any) -> None:
    served, prompt = serve(), prompt_of(1, 10)
    free = served.generate(prompt, 40).ids
    reply = served.generate(prompt, 40, words=((free[8], free[9], free[10]), (free[9], VOCAB - 1)))
    assert reply.ids == free[:11]
    assert reply.finish_reason == "stop"
    assert reply.log_probs == pytest.approx(scored(served.model, prompt, reply.ids), abs=1e-4)


def test_min_tokens_holds_the_end_token_back(serve: Any) -> None:
    served, prompt = serve(), prompt_of(1, 10)
    end = served.generate(prompt, 1, temperature=0.0).ids[0]
    assert len(served.generate(prompt, 30, end_ids=(end,), temperature=0.0).ids) == 1
    held = served.generate(prompt, 30, end_ids=(end,), min_tokens=6, temperature=0.0)
    assert end not in held.ids[:6]
    assert held.log_probs == pytest.approx(scored(served.model, prompt, held.ids), abs=1e-4)


def test_penalties_count_what_was_sampled(serve: Any) -> None:
    served, prompt = serve(), prompt_of(1, 10)
    free = served.generate(prompt, 40, temperature=0.0).ids
    assert len(set(free)) < 40
    assert len(set(served.generate(prompt, 40, temperature=0.0, presence_penalty=1000.0).ids)) == 40
    fresh = served.generate(prompt, 40, temperature=0.0, repetition_penalty=1e6).ids
    assert not set(fresh[:20]) & set(prompt)


def test_a_cancelled_request_ends_at_once_and_gives_its_blocks_back(serve: Any) -> None:
    served = serve()
    inbox, generation = served.send(prompt_of(1, 40), 200)
    other, _ = served.send(prompt_of(2, 20), 30, seed=4)
    inbox.wait_for_tokens()
    generation.mark_cancelled()
    inbox.wait()
    other.wait()
    assert inbox.finish_reason == "cancelled"
    assert 1 <= len(inbox.ids) == len(inbox.log_probs) < 200
    assert other.ids == serve().generate(prompt_of(2, 20), 30, seed=4).ids
    served.control(ControlOp.FLUSH)
    stats = served.stats()
    assert (stats["live"], stats["running"], stats["waiting"]) == (0, 0, 0)
    assert stats["kv_blocks_free"] == stats["kv_blocks"]


def test_a_request_that_was_cancelled_before_its_first_step_samples_nothing(serve: Any) -> None:
    served = serve(max_batch_tokens=16)
    first, _ = served.send(prompt_of(1, 200), 20)
    inbox, generation = served.send(prompt_of(2, 200), 20)
    generation.mark_cancelled()
    inbox.wait()
    first.wait()
    assert inbox.finish_reason == "cancelled"
    assert inbox.ids == []
    assert first.finish_reason == "length"


def test_a_cache_that_cannot_hold_the_longest_sequence_is_refused() -> None:
    with pytest.raises(SettingsError, match="holds 64 tokens, fewer than max_seq_len 65"):
        Batch(tiny_model(), CacheSettings(PAGE, 4, 64, 16), 65, CountingSlots())
