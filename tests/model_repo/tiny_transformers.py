"""A tiny random model behind a running generation loop, and clients of it, for tests without a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from model_repo.common.control import Control, ControlOp
from model_repo.common.front import ControlCall
from model_repo.common.generation import Generation
from model_repo.common.guides import Guide
from model_repo.common.replies import Outputs
from model_repo.common.requests import GenerateRequest, Sampling
from model_repo.transformers.batch import Batch, RowSampler
from model_repo.transformers.batches import Batches
from model_repo.transformers.loop import GenerationLoop
from model_repo.transformers.lora import Adapters
from model_repo.transformers.model_control import ModelControl
from model_repo.transformers.settings import CacheSettings
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

    def __init__(self, vocab_size: int = VOCAB) -> None:
        super().__init__(vocab_size, torch.device("cpu"))
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
        self,
        prompt: list[int],
        max_tokens: int,
        *,
        end_ids: tuple[int, ...] = (),
        words: Any = (),
        guide: Guide | None = None,
        lora: str = "",
        **sampling: Any,
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
            guide=guide,
            lora=lora,
        )
        inbox = Inbox()
        generation = Generation(
            request, inbox, window=lambda: 0.0, log=None, on_end=lambda _: None, refusal="refused: "
        )
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


def tiny_model(vocab_size: int = VOCAB) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_SEQ_LEN,
        initializer_range=0.4,
    )
    return LlamaForCausalLM(config).eval()


@contextmanager
def one_thread() -> Iterator[None]:
    """A model this small is not worth a second thread, least of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def serving() -> Iterator[Callable[..., Served]]:
    """A function that starts loops; all are closed at the end."""
    running: list[GenerationLoop] = []

    def start(
        *,
        num_blocks: int = 64,
        max_batch_tokens: int = 64,
        make: Any = None,
        guides: Any = None,
        vocab_size: int = VOCAB,
        loras: dict[str, Path] | None = None,
    ) -> Served:
        model, slots, warnings = tiny_model(vocab_size), CountingSlots(vocab_size), []
        cache = CacheSettings(PAGE, num_blocks, max_batch_tokens, 16)
        adapters = Adapters(model, loras or {})

        def make_batches(sampler: RowSampler) -> Batches:
            return Batches(lambda: Batch(model, cache, min(MAX_SEQ_LEN, num_blocks * PAGE), sampler), adapters)

        control = ModelControl(model, 3, {"vocab_size": vocab_size, "max_seq_len": MAX_SEQ_LEN})
        loop = GenerationLoop(slots, make or make_batches, control, warnings.append, guides)
        loop.start()
        running.append(loop)
        return Served(model, loop, slots, warnings)

    with one_thread():
        try:
            yield start
        finally:
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
