"""The generation loop over a tiny random model: batching, ends, preemption, crashes. No server."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from model_repo.common.control import Control, ControlOp
from model_repo.common.front import ControlCall
from model_repo.common.generation import Generation
from model_repo.common.replies import Outputs
from model_repo.common.requests import GenerateRequest, Sampling
from model_repo.transformers.batch import Batch
from model_repo.transformers.loop import SHUTTING_DOWN, GenerationLoop
from model_repo.transformers.model_control import ModelControl
from model_repo.transformers.settings import CacheSettings, SettingsError
from model_repo.transformers.slots import Slots

VOCAB = 96
MAX_SEQ_LEN = 256
PAGE = 16
LIMIT_S = 60.0
PLAIN = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "seed": 1,
    "min_tokens": 0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


class Inbox:
    """A client: what arrives for one request."""

    def __init__(self) -> None:
        self.outputs: list[Outputs] = []
        self.error: str | None = None
        self.ended = threading.Event()
        self.tokens = threading.Condition()

    def send(self, outputs: Outputs, *, final: bool) -> None:
        with self.tokens:
            self.outputs.append(outputs)
            self.tokens.notify_all()
        if final:
            self.ended.set()

    def fail(self, message: str) -> None:
        self.error = message
        self.ended.set()

    def is_cancelled(self) -> bool:
        return False

    def wait(self) -> None:
        assert self.ended.wait(LIMIT_S), "the request never ended"

    def wait_for_tokens(self) -> None:
        with self.tokens:
            assert self.tokens.wait_for(lambda: bool(self.outputs), LIMIT_S), "no token came"

    def joined(self, name: str) -> list[Any]:
        return [value for outputs in self.outputs for value in outputs[name][0, 0].tolist()]

    @property
    def ids(self) -> list[int]:
        return self.joined("output_ids")

    @property
    def log_probs(self) -> list[float]:
        return self.joined("output_log_probs")

    @property
    def finish_reason(self) -> str:
        return self.outputs[-1]["finish_reason"][0, 0].decode()

    @property
    def cached_tokens(self) -> int:
        return int(self.outputs[-1]["cached_tokens"][0, 0])


class CountingSlots(Slots):
    """Counts for each request how often it was scheduled with an empty cache: twice if it was preempted."""

    def __init__(self) -> None:
        super().__init__(VOCAB, torch.device("cpu"))
        self.fresh_starts: dict[str, int] = {}

    def scheduled(self, key: str, cached_tokens: int) -> None:
        super().scheduled(key, cached_tokens)
        self.fresh_starts[key] = self.fresh_starts.get(key, 0) + (cached_tokens == 0)


@dataclass
class Served:
    """A running loop and how to talk to it."""

    model: LlamaForCausalLM
    loop: GenerationLoop
    slots: CountingSlots
    warnings: list[str] = field(default_factory=list)

    def send(
        self, prompt: list[int], max_tokens: int, *, end_ids: tuple[int, ...] = (), words: Any = (), **sampling: Any
    ) -> tuple[Inbox, Generation]:
        request = GenerateRequest(
            request_id="",
            prompt_ids=np.array(prompt, dtype=np.int32),
            max_tokens=max_tokens,
            end_ids=end_ids,
            stop_words=words,
            sampling=Sampling(**PLAIN | sampling),
            streaming=True,
            return_log_probs=True,
            exclude_input_in_output=True,
            session="",
            turn=0,
        )
        inbox = Inbox()
        generation = Generation(request, inbox, window=0.0, log=None, on_end=lambda _: None)
        self.loop.submit(generation)
        return inbox, generation

    def generate(self, prompt: list[int], max_tokens: int, **more: Any) -> Inbox:
        inbox, _ = self.send(prompt, max_tokens, **more)
        inbox.wait()
        assert inbox.error is None
        return inbox

    def control(self, op: ControlOp, **more: Any) -> tuple[dict[str, Any], str | None]:
        inbox = Inbox()
        self.loop.control(ControlCall(Control(op, **more), inbox))
        inbox.wait()
        return (json.loads(inbox.outputs[0]["control_reply"][0, 0]) if inbox.outputs else {}), inbox.error

    def stats(self) -> dict[str, Any]:
        return self.control(ControlOp.STATS)[0]


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_SEQ_LEN,
        initializer_range=0.4,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A model this small is not worth a second thread, least of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Start loops; all are closed at the end."""
    running: list[GenerationLoop] = []

    def start(*, num_blocks: int = 64, max_batch_tokens: int = 64, make: Any = None) -> Served:
        model, slots, warnings = tiny_model(), CountingSlots(), []
        cache = CacheSettings(PAGE, num_blocks, max_batch_tokens, 16)
        make_batch = make or (lambda sampler: Batch(model, cache, min(MAX_SEQ_LEN, num_blocks * PAGE), sampler))
        control = ModelControl(model, 3, {"vocab_size": VOCAB, "max_seq_len": MAX_SEQ_LEN})
        loop = GenerationLoop(slots, make_batch, control, warnings.append)
        loop.start()
        running.append(loop)
        return Served(model, loop, slots, warnings)

    yield start
    for loop in running:
        loop.close()


def scored(model: LlamaForCausalLM, prompt: list[int], output: list[int]) -> list[float]:
    """Log probs of ``output`` in one plain pass over the whole sequence."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + output])).logits[0]
    rows = logits[len(prompt) - 1 : -1].float().log_softmax(-1)
    return rows[range(len(output)), output].tolist()


def prompt_of(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


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


def test_a_broken_step_fails_the_live_requests_and_no_later_one(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve()
    sent = [served.send(prompt_of(seed, 20), 200, seed=seed)[0] for seed in range(3)]
    for inbox in sent:
        inbox.wait_for_tokens()

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("device lost")

    with monkeypatch.context() as patch:
        patch.setattr(served.model, "forward", broken)
        for inbox in sent:
            inbox.wait()
    assert {inbox.error for inbox in sent} == {"the generation loop broke: device lost"}
    assert served.stats()["restarts"] == 1
    assert "device lost" in served.warnings[0]
    prompt = prompt_of(1, 20)
    reply = served.generate(prompt, 20)
    assert reply.log_probs == pytest.approx(scored(served.model, prompt, reply.ids), abs=1e-4)


def test_the_broken_batch_is_gone_before_the_next_is_built(serve: Any) -> None:
    made: list[weakref.ref[FailingBatch]] = []
    alive: list[bool] = []

    def make(sampler: Any) -> Any:
        alive.append(any(batch() is not None for batch in made))
        batch = FailingBatch()
        made.append(weakref.ref(batch))
        return batch

    served = serve(make=make)
    inbox, _ = served.send(prompt_of(1, 5), 5)
    inbox.wait()
    assert served.stats()["restarts"] == 1
    assert alive == [False, False]


def test_when_the_batch_cannot_be_built_again_every_request_fails(serve: Any) -> None:
    made: list[bool] = []

    def once(sampler: Any) -> Any:
        if made:
            raise MemoryError("no memory for the KV cache")
        made.append(True)
        return FailingBatch()

    served = serve(make=once)
    for _ in range(2):
        inbox, _ = served.send(prompt_of(1, 5), 5)
        inbox.wait()
    assert inbox.error is not None
    assert "no memory for the KV cache" in inbox.error
    assert served.stats()["live"] == 0


class FailingBatch:
    """A batch whose every step breaks."""

    def add(self, key: str, prompt_ids: list[int]) -> None: ...

    def step(self) -> None:
        raise RuntimeError("broken")

    def figures(self) -> dict[str, int]:
        return {}


def test_logits_that_are_not_finite_fail_the_request(serve: Any) -> None:
    served = serve()
    with torch.no_grad():
        served.model.lm_head.weight[5, 0] = float("nan")
    inbox, _ = served.send(prompt_of(1, 20), 20)
    inbox.wait()
    assert inbox.error == "the model's logits are not finite"
    assert served.stats()["running"] == 0


def test_closing_ends_what_is_live(serve: Any) -> None:
    served = serve()
    inbox, _ = served.send(prompt_of(1, 20), 200)
    inbox.wait_for_tokens()
    served.loop.close()
    assert inbox.error == SHUTTING_DOWN


def test_new_weights_take_effect_in_place_and_empty_the_cache(serve: Any, tmp_path: Path) -> None:
    served, prompt = serve(), prompt_of(1, 70)
    before = served.generate(prompt, 30)
    torch.manual_seed(1)
    state = {name: torch.randn_like(tensor) * 0.4 for name, tensor in served.model.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    answer, error = served.control(ControlOp.UPDATE_WEIGHTS, version=9, path=str(tmp_path))
    assert (answer, error) == ({"op": "update_weights", "weight_version": 9}, None)
    after = served.generate(prompt, 30)
    assert after.cached_tokens == 0
    assert {int(outputs["weight_version"][0, 0]) for outputs in after.outputs} == {9}
    assert after.ids != before.ids
    assert torch.equal(served.model.lm_head.weight, state["lm_head.weight"])
    assert after.log_probs == pytest.approx(scored(served.model, prompt, after.ids), abs=1e-4)


def test_weights_do_not_change_under_a_live_request(serve: Any, tmp_path: Path) -> None:
    served = serve()
    inbox, generation = served.send(prompt_of(1, 20), 200)
    inbox.wait_for_tokens()
    save_file(served.model.state_dict(), tmp_path / "model.safetensors")
    for op, more in ((ControlOp.UPDATE_WEIGHTS, {"version": 9, "path": str(tmp_path)}), (ControlOp.FLUSH, {})):
        _, error = served.control(op, **more)
        assert error == f"{op}: 1 requests are live; end or cancel them first"
    generation.mark_cancelled()
    inbox.wait()
    assert served.stats()["weight_version"] == 3


def broken_states(good: dict[str, torch.Tensor]) -> Iterator[tuple[dict[str, torch.Tensor], str]]:
    yield {}, "is missing (21 such)"
    yield good | {"extra": torch.zeros(1)}, "the model has no weight extra (1 such)"
    yield {k: v for k, v in good.items() if k != "lm_head.weight"}, "the weight lm_head.weight is missing (1 such)"
    yield good | {"model.norm.weight": torch.zeros(3)}, "model.norm.weight has shape [3], the model's [32]"
    yield good | {"model.norm.weight": torch.full((32,), torch.nan)}, "model.norm.weight has values that are not finite"


def test_a_wrong_state_is_refused_and_changes_nothing(serve: Any, tmp_path: Path) -> None:
    served = serve()
    good = {name: tensor.clone() for name, tensor in served.model.state_dict().items()}
    other = {name: tensor + 1 for name, tensor in good.items()}
    for state, message in broken_states(other):
        save_file(state, tmp_path / "model.safetensors")
        _, error = served.control(ControlOp.UPDATE_WEIGHTS, version=9, path=str(tmp_path / "model.safetensors"))
        assert error is not None
        assert message in error
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    for path in (tmp_path, tmp_path / "absent", None):
        assert served.control(ControlOp.UPDATE_WEIGHTS, version=9, path=path and str(path))[1] is not None
    assert all(torch.equal(tensor, good[name]) for name, tensor in served.model.state_dict().items())
    assert served.stats()["weight_version"] == 3


def test_a_cache_that_cannot_hold_the_longest_sequence_is_refused() -> None:
    with pytest.raises(SettingsError, match="holds 64 tokens, fewer than max_seq_len 65"):
        Batch(tiny_model(), CacheSettings(PAGE, 4, 64, 16), 65, CountingSlots())
