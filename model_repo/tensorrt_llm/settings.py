"""The model's own parameters and its one YAML, as arguments of ``tensorrt_llm.LLM``.

    model_dir                 a transformers checkpoint folder; LLM's ``model``
    engine_yaml               a file of further arguments of LLM, by their own names (``speculative_config``, ``moe_config``,
                              ``cuda_graph_config``, ``stream_interval``, ...); also the rest of ``kv_cache_config``. They go there
                              as they are, so a key that the version does not know fails the load with its own message
    dtype                     as LLM's
    tensor_parallel_size      GPUs that share each layer
    pipeline_parallel_size    GPUs that share the layers between them
    expert_parallel_size      GPUs that share the experts (``moe_expert_parallel_size``); 0: LLM's own choice
    kv_cache_reuse            true or false: keys and values of a prompt's prefix are kept for later prompts
    kv_cache_fraction         of the GPU memory that the weights leave, for the KV cache
    chunked_prefill           true or false: a prompt may be longer than ``max_batch_tokens``
    max_batch_requests        requests in one forward pass (``max_batch_size``); 0: LLM's own choice
    max_batch_tokens          tokens in one forward pass (``max_num_tokens``); 0: LLM's own choice
    guided_decoding           kinds of guides that requests may have, from ``GUIDES_BY_BACKEND``, or none; needs
                              ``log_prob_mode=processed``
    guided_decoding_backend   llguidance or xgrammar
    penalties                 auto, on or off: whether this version's sampler applies them; auto knows from which version on
    weight_update             reload: new weights by loading the LLM anew; in_place: through its workers, which takes
                              ``orchestrator_type: ray``; auto: in_place where that is possible

``max_seq_len``, ``vocab_size``, ``weight_version``, ``log_prob_mode`` and ``loras`` are parameters of every model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeVar

import yaml

GUIDES_BY_BACKEND: Mapping[str, frozenset[str]] = {
    "llguidance": frozenset({"json", "json_schema", "regex", "lark"}),
    "xgrammar": frozenset({"json", "json_schema", "regex", "ebnf_grammar"}),
}
"""By the names of the client's ``GuideKind``. What TensorRT-LLM calls EBNF_GRAMMAR is Lark for llguidance
(``tensorrt_llm/_torch/pyexecutor/grammar_matcher.py``)."""

SET_BY_PARAMETER: Mapping[str, str] = {
    "model": "model_dir",
    "max_seq_len": "max_seq_len",
    "dtype": "dtype",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "moe_expert_parallel_size": "expert_parallel_size",
    "enable_chunked_prefill": "chunked_prefill",
    "max_batch_size": "max_batch_requests",
    "max_num_tokens": "max_batch_tokens",
    "guided_decoding_backend": "guided_decoding_backend",
    "skip_tokenizer_init": "guided_decoding",
    "enable_lora": "loras",
    "lora_config": "loras",
}
"""Arguments of LLM that the YAML must leave to a parameter."""

KV_SET_BY_PARAMETER: Mapping[str, str] = {
    "enable_block_reuse": "kv_cache_reuse",
    "free_gpu_memory_fraction": "kv_cache_fraction",
}

CPP_SAMPLER = "TRTLLMSampler"
RAY = "ray"
WORKER_EXTENSION = "tensorrt_llm.llmapi.rlhf_utils.WorkerExtension"
"""What gives ray's workers ``update_weights``."""


Choice = TypeVar("Choice", bound=StrEnum)


class SettingsError(ValueError):
    """A parameter has no meaning here; the message names it."""


class LogProbs(StrEnum):
    """Of which distribution: before or after temperature, penalties and truncation."""

    RAW = "raw"
    PROCESSED = "processed"


class Penalties(StrEnum):
    """Whether the sampler applies repetition, presence and frequency penalties."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class WeightUpdate(StrEnum):
    """How new weights come in."""

    AUTO = "auto"
    IN_PLACE = "in_place"
    RELOAD = "reload"


class ParameterReads(Protocol):
    """``common.parameters.Parameters``."""

    def text(self, name: str, default: str | None = None) -> str: ...

    def integer(self, name: str, default: int | None = None, *, minimum: int = 0) -> int: ...

    def number(self, name: str, default: float | None = None, *, minimum: float = 0.0) -> float: ...


class Limits(Protocol):
    """``common.requests.Limits``."""

    vocab_size: int
    max_seq_len: int
    guides: frozenset[str]


@dataclass(frozen=True, slots=True)
class Settings:
    """``llm_args`` are LLM's arguments but for ``model`` and those of adapters; ``has_reuse``: prompts share keys and values."""

    model_dir: Path
    llm_args: Mapping[str, Any]
    max_seq_len: int
    vocab_size: int
    weight_version: int
    log_probs: LogProbs
    guides: frozenset[str]
    loras: Mapping[str, Path]
    penalties: Penalties
    weight_update: WeightUpdate
    has_reuse: bool

    @property
    def has_cpp_sampler(self) -> bool:
        return self.llm_args.get("sampler_type") == CPP_SAMPLER

    @property
    def has_ray(self) -> bool:
        return self.llm_args.get("orchestrator_type") == RAY


def read_settings(parameters: ParameterReads, limits: Limits, loras: Mapping[str, Path]) -> Settings:
    """Raises: SettingsError, or the reads' own error."""
    reuse = _flag(parameters, "kv_cache_reuse", True)
    settings = Settings(
        model_dir=Path(parameters.text("model_dir")),
        llm_args=_llm_args(parameters, limits, reuse),
        max_seq_len=limits.max_seq_len,
        vocab_size=limits.vocab_size,
        weight_version=parameters.integer("weight_version", 0),
        log_probs=_choice(parameters, "log_prob_mode", LogProbs, LogProbs.RAW),
        guides=limits.guides,
        loras=loras,
        penalties=_choice(parameters, "penalties", Penalties, Penalties.AUTO),
        weight_update=_choice(parameters, "weight_update", WeightUpdate, WeightUpdate.AUTO),
        has_reuse=reuse,
    )
    if settings.guides and settings.log_probs is LogProbs.RAW:
        raise SettingsError(
            "parameter guided_decoding: TensorRT-LLM masks the logits before it takes log probs of them, so they are not raw; set "
            "log_prob_mode to processed, or guided_decoding to none"
        )
    if settings.weight_update is WeightUpdate.IN_PLACE and not settings.has_ray:
        raise SettingsError("parameter weight_update: in_place needs orchestrator_type: ray in engine_yaml; use reload")
    return settings


def _llm_args(parameters: ParameterReads, limits: Limits, reuse: bool) -> dict[str, Any]:
    further = _read_yaml(parameters.text("engine_yaml", ""))
    cache = dict(further.pop("kv_cache_config", None) or {})
    _refuse_set(further, SET_BY_PARAMETER, "")
    _refuse_set(cache, KV_SET_BY_PARAMETER, "kv_cache_config.")
    if further.get("backend", "pytorch") != "pytorch":
        raise SettingsError(f"parameter engine_yaml: backend {further['backend']!r}; this model is for pytorch only")
    if further.get("orchestrator_type") == RAY:
        further.setdefault("ray_worker_extension_cls", WORKER_EXTENSION)
        # AsyncLLM sets it too: with the default, several instances that share a layer between GPUs were seen not to converge.
        further.setdefault("allreduce_strategy", "NCCL")
    cache |= {"enable_block_reuse": reuse, "free_gpu_memory_fraction": _fraction(parameters)}
    own = {
        "max_seq_len": limits.max_seq_len,
        "dtype": parameters.text("dtype", "auto"),
        "tensor_parallel_size": parameters.integer("tensor_parallel_size", 1, minimum=1),
        "pipeline_parallel_size": parameters.integer("pipeline_parallel_size", 1, minimum=1),
        # Off, a prompt longer than max_num_tokens is an error, whatever max_seq_len says.
        "enable_chunked_prefill": _flag(parameters, "chunked_prefill", True),
        # Prompts come as ids. Without a tokenizer no end token of its own gets into a request (SamplingParams._setup).
        "skip_tokenizer_init": not limits.guides,
    }
    sizes = {
        "moe_expert_parallel_size": parameters.integer("expert_parallel_size", 0),
        "max_batch_size": parameters.integer("max_batch_requests", 0),
        "max_num_tokens": parameters.integer("max_batch_tokens", 0),
    }
    own |= {name: size for name, size in sizes.items() if size}
    return own | _guide_args(parameters, limits) | further | {"kv_cache_config": cache}


def _guide_args(parameters: ParameterReads, limits: Limits) -> dict[str, str]:
    backend = parameters.text("guided_decoding_backend", "llguidance")
    if backend not in GUIDES_BY_BACKEND:
        raise SettingsError(f"parameter guided_decoding_backend: {backend!r} is none of {', '.join(GUIDES_BY_BACKEND)}")
    if unknown := sorted(limits.guides - GUIDES_BY_BACKEND[backend]):
        offered = ", ".join(sorted(GUIDES_BY_BACKEND[backend]))
        raise SettingsError(f"parameter guided_decoding: {backend} has no {unknown[0]!r}; it has {offered}, or none")
    return {"guided_decoding_backend": backend} if limits.guides else {}


def _read_yaml(path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"parameter engine_yaml: {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"parameter engine_yaml: {path} is not YAML: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict) or not isinstance(document.get("kv_cache_config", {}), dict | None):
        raise SettingsError(f"parameter engine_yaml: {path} is not a table of arguments by name")
    return document


def _refuse_set(given: Mapping[str, Any], owned: Mapping[str, str], prefix: str) -> None:
    for name in given:
        if name in owned:
            raise SettingsError(f"parameter engine_yaml: {prefix}{name} is set by the parameter {owned[name]}")


def _fraction(parameters: ParameterReads) -> float:
    fraction = parameters.number("kv_cache_fraction", 0.9)
    if not 0 < fraction < 1:
        raise SettingsError(f"parameter kv_cache_fraction: {fraction} is not between 0 and 1")
    return fraction


def _flag(parameters: ParameterReads, name: str, default: bool) -> bool:
    value = parameters.text(name, json.dumps(default))
    if value not in ("true", "false"):
        raise SettingsError(f"parameter {name}: {value!r} is neither true nor false")
    return value == "true"


def _choice(parameters: ParameterReads, name: str, kind: type[Choice], default: Choice) -> Choice:
    value = parameters.text(name, default)
    if value not in list(kind):
        raise SettingsError(f"parameter {name}: {value!r} is none of {', '.join(kind)}")
    return kind(value)
