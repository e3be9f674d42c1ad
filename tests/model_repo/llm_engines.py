"""The model over TensorRT-LLM, without a server: its loop over a flavour of the stand-in, and requests to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common.control import Control
from common.front import ControlCall
from common.generation import Generation
from common.loras import read_loras
from common.parameters import Parameters
from common.requests import GenerateRequest, Limits

from model_repo.tensorrt_llm.library import load_library
from model_repo.tensorrt_llm.llm_engine import LlmEngine
from model_repo.tensorrt_llm.loop import GenerationLoop
from model_repo.tensorrt_llm.settings import Settings, read_settings
from model_repo.tensorrt_llm.weight_control import WeightControl
from tests.model_repo.doubles import FakeSender, make_request
from tests.support.llm_api_stand_in import installed

ANSWER_S = 20.0
"""Far more than any takes; reaching it fails the test."""

VOCAB, MAX_SEQ_LEN = 64, 256
PROMPT = [5, 6, 7, 8]


@dataclass
class Sender(FakeSender):
    """Says when the last response was sent."""

    done: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)

    def send(self, outputs: Any, *, final: bool) -> None:
        super().send(outputs, final=final)
        self.begun.set()
        if final:
            self.done.set()

    def fail(self, message: str) -> None:
        super().fail(message)
        self.done.set()

    @property
    def all_ids(self) -> list[int]:
        return [token for ids in self.ids for token in ids]

    @property
    def log_probs(self) -> list[float]:
        return [v for r in self.responses for v in r["output_log_probs"].reshape(-1).tolist()]

    def last(self, name: str) -> int:
        return int(self.responses[-1][name][0, 0])


@dataclass
class Engine:
    """A running loop."""

    loop: GenerationLoop
    engine: LlmEngine
    warnings: list[str]

    def begin(self, request: GenerateRequest) -> tuple[Generation, Sender]:
        sender = Sender()
        generation = Generation(
            request, sender, window=lambda: 0.0, log=None, on_end=lambda _: None, refusal="invalid request: "
        )
        self.loop.submit(generation)
        return generation, sender

    def ask(self, request: GenerateRequest) -> Sender:
        sender = self.begin(request)[1]
        assert sender.done.wait(ANSWER_S)
        return sender

    def control(self, control: Control) -> Sender:
        sender = Sender()
        self.loop.control(ControlCall(control, sender))
        assert sender.done.wait(ANSWER_S)
        return sender


def make_settings(model_dir: Path, **parameters: str) -> Settings:
    given = Parameters({"model_dir": str(model_dir), **parameters})
    kinds = parameters.get("guided_decoding", "")
    limits = Limits(VOCAB, MAX_SEQ_LEN, guides=frozenset(filter(None, kinds.split(","))))
    return read_settings(given, limits, read_loras(parameters.get("loras", "")))


@contextmanager
def running(flavour: str, model_dir: Path, **parameters: str) -> Iterator[Engine]:
    with installed(flavour):
        settings, warnings = make_settings(model_dir, **parameters), []
        engine = LlmEngine(load_library(), settings)
        limits = {"vocab_size": VOCAB, "max_seq_len": MAX_SEQ_LEN}
        control = WeightControl(engine, settings.weight_version, str(model_dir), limits)
        loop = GenerationLoop(engine, control, warnings.append, health_interval_s=0.02)
        loop.start()
        try:
            yield Engine(loop, engine, warnings)
        finally:
            loop.close()


def raw_log_probs(network: Any, prompt: Sequence[int], output: Sequence[int]) -> list[float]:
    """What the stand-in's model itself says of ``output`` after ``prompt``."""
    ids = [*prompt, *output]
    rows = [network.logits(ids[:end]).log_softmax(-1) for end in range(len(prompt), len(ids))]
    return [row[token].item() for row, token in zip(rows, output, strict=True)] if rows else [torch.nan]


def request(**changes: Any) -> GenerateRequest:
    """A streamed request for up to 12 tokens after PROMPT, without an end; ``changes`` as in ``make_request``."""
    defaults: dict[str, Any] = {"prompt_ids": np.array(PROMPT, np.int32), "end_ids": (), "max_tokens": 12}
    return make_request(**(defaults | changes))
