"""The Triton model over TensorRT-LLM's LLM API: the production engine, on NVIDIA GPUs.

    Triton's thread:  execute -> common.front (decode, refuse, stop) -> loop.GenerationLoop.submit
    the loop's:       llm_engine (LLM.generate_async) -> reply -> common.generation -> client

``settings`` reads the parameters and the YAML, ``library`` finds the version's classes, ``names`` is the table of all that is used
of them, with what a version that lacks a name gets; ``sampling`` and ``tokens`` are a request's way in and out; ``weight_control``
does stats, flush and new weights (``checkpoint`` looks at them, ``ipc_weights`` hands them to running workers); ``lora_adapters``
are LoRA's. None of these imports ``common``: what they need of it is handed in here.

Log probs are of the model's own logits (``log_prob_mode=raw``), or of those that were sampled from (``processed``), if the version
has the choice.

What the LLM API does that one would not think, and where it is met:

- Ids in, ids out: its own Triton model (``triton_backend/all_models/llmapi``) is text only, and reads ``decoupled`` from a YAML
  that a server without automatic completion ignores. Ours is in the rendered ``config.pbtxt``.
- Greedy where nothing is given, seed 0 where none is, the tokenizer's end token where none is: ``sampling``.
- Ends: token ids are cut where a stop token is not to be included, log probs were not; ``min_tokens`` is not what it says;
  extra end tokens of a ``generation_config.json`` may get into a request where there is a tokenizer: ``sampling``, ``reply``.
- ``logprobs`` 0 is none in one version and the sampled token's in the next; raw or processed is not a choice everywhere; penalties
  are dropped without a word before 1.3.0rc24: ``names``.
- Answers are all so far, several tokens at once, more log probs than tokens at times: ``tokens``. An iteration that ends without an
  end, or with too few tokens, fails the request: ``reply``.
- A request to workers that are gone waits for ever: ``loop``. So does a cancelled one in some versions: its end is not waited for.
- A prompt beyond ``max_num_tokens`` is an error unless it is prefilled in chunks: ``settings``, on by default.
- Keys and values of old weights, or of another adapter, must not be reused: ``llm_engine`` (``cache_salt``).
- KV offload to the host, FP8 KV cache with reuse, and guided decoding with reuse have known faults in 1.2: ``warnings_of``; none is
  on by default.
- Weights in place exist with ray only, and want NCCL for its sums: ``settings``, ``ipc_weights``.
- Some builds of the 1.2 line give the log probs of the best tokens, and not the sampled one's. There ``sampler_type:
  TRTLLMSampler`` in the YAML and ``log_prob_mode=processed`` have it, but before truncation: without top_k and top_p; ``tokens``,
  ``sampling``.
- Raw log probs are after penalties and the mask of a grammar, so neither goes with ``log_prob_mode=raw``: ``sampling``.
- A seed goes to the engine as it is. ``TorchSampler`` of the 1.2 line draws the whole batch from one generator
  (``tensorrt_llm/_torch/pyexecutor/sampler.py``, ``get_generator``), so there it does not make a sample repeatable; later ones have
  a seed for each request.

Nothing of this has run on a GPU yet. What its tests run on is a stand-in for the LLM API in a real tritonserver
(``tests/support/llm_api_stand_in``): parallelism, chunked prefill, speculation, weights in place and the library's own adapters
are passed on as documented, and no more is known of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .common.contract import load_contract
from .common.front import Front, FrontSettings
from .common.loras import read_loras
from .common.parameters import Parameters
from .common.triton import TritonReader, TritonSender, warn
from .library import load_library
from .llm_engine import LlmEngine
from .loop import GenerationLoop
from .settings import read_settings
from .warnings_of import known_faults
from .weight_control import WeightControl


class TritonPythonModel:
    """What Triton calls."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = Parameters.from_model_config(args["model_config"])
        front_settings = FrontSettings.from_parameters(parameters)
        settings = read_settings(parameters, front_settings.limits, read_loras(parameters.text("loras", "")))
        library = load_library()
        for fault in known_faults(settings, library.version):
            warn(fault)
        engine = LlmEngine(library, settings)
        limits = {"vocab_size": settings.vocab_size, "max_seq_len": settings.max_seq_len}
        control = WeightControl(engine, settings.weight_version, str(settings.model_dir), limits)
        self._loop = GenerationLoop(engine, control, warn)
        self._front = Front(load_contract(Path(__file__).parent), front_settings, self._loop, warn)
        self._loop.start()
        self._front.start()

    def execute(self, requests: list[Any]) -> None:
        self._front.execute((TritonReader(request), TritonSender(request)) for request in requests)

    def finalize(self) -> None:
        self._loop.close()
        self._front.close()
