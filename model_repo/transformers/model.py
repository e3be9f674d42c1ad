"""The Triton model over transformers' continuous batching: the embedded default, on CPU or CUDA.

    Triton's thread:  execute -> common.front (decode, refuse, stop) -> loop.GenerationLoop.submit
    the loop's:       batch (the library: scheduler, paged KV cache, forward pass) -> slots, sampling
                      -> common.generation -> client

``settings`` reads the parameters, ``weights`` loads and replaces them, ``model_control`` does stats, flush and new weights;
``lora`` adds adapters, ``batches`` keeps them apart; ``guided`` compiles grammars; ``batch`` alone touches the library's
internals. None of these imports ``common``: what they need of it is handed in here, so that each can be tried without a server.

Log probs are raw: log_softmax of the model's logits in float32, before temperature, penalties, truncation and the mask of a
guide.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .batch import Batch, RowSampler, check_library
from .batches import Batches
from .common.contract import load_contract
from .common.front import Front, FrontSettings
from .common.loras import read_loras
from .common.parameters import Parameters
from .common.triton import TritonReader, TritonSender, warn
from .guided import GuideCompiler
from .loop import GenerationLoop
from .lora import Adapters
from .model_control import ModelControl
from .settings import Settings, read_settings
from .slots import Slots
from .weights import load_model


class TritonPythonModel:
    """What Triton calls."""

    def initialize(self, args: dict[str, str]) -> None:
        check_library()
        parameters = Parameters.from_model_config(args["model_config"])
        front_settings = FrontSettings.from_parameters(parameters)
        settings = read_settings(parameters, front_settings.limits)
        torch.set_num_threads(settings.num_threads)
        self._loop = _generation_loop(settings, read_loras(parameters.text("loras", "")))
        self._front = Front(load_contract(Path(__file__).parent), front_settings, self._loop, warn)
        self._loop.start()
        self._front.start()

    def execute(self, requests: list[Any]) -> None:
        self._front.execute((TritonReader(request), TritonSender(request)) for request in requests)

    def finalize(self) -> None:
        self._loop.close()
        self._front.close()


def _generation_loop(settings: Settings, loras: dict[str, Path]) -> GenerationLoop:
    model = load_model(settings)
    adapters = Adapters(model, loras)

    def make_batches(sampler: RowSampler) -> Batches:
        return Batches(lambda: Batch(model, settings.cache, settings.max_seq_len, sampler), adapters)

    limits = {"vocab_size": settings.vocab_size, "max_seq_len": settings.max_seq_len}
    control = ModelControl(model, settings.weight_version, limits, str(settings.model_dir))
    tokenizer_file = settings.model_dir / "tokenizer.json"
    guides = GuideCompiler(tokenizer_file, settings.vocab_size, settings.device) if settings.has_guides else None
    return GenerationLoop(
        Slots(settings.vocab_size, settings.device),
        make_batches,
        control,
        warn,
        guides,
    )
