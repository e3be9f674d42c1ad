"""Every name of the LLM API that this model uses, where it is defined, and what happens in a version that lacks it.

The table is what ``check_names`` and ``read_features`` go by when the model loads; nothing is taken from a version's number except
where a version says nothing else (``penalties``). Sources are files of TensorRT-LLM; the versions meant are 1.2.1 and the
1.3 and 1.4 line.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from .settings import LogProbs, Penalties, Settings, SettingsError

_LLM = "tensorrt_llm/llmapi/llm.py"
_SAMPLING = "tensorrt_llm/sampling_params.py"
_RESULT = "tensorrt_llm/executor/result.py"
_ARGS = "tensorrt_llm/llmapi/llm_args.py"
_LORA = "tensorrt_llm/lora_helper.py"
_REQUEST = "tensorrt_llm/executor/request.py"

PENALTIES_SINCE = Version("1.3.0rc24")
"""From the documentation of that version on ``TorchSampler`` applies penalties; before, it drops them without a word, and no name
tells the two apart."""


@dataclass(frozen=True, slots=True)
class Name:
    """``owner`` is a class, or a method where ``name`` is an argument of it. ``without`` says what a version that lacks the name
    gets; empty where the model does not load."""

    owner: str
    name: str
    source: str
    without: str = ""


NAMES: tuple[Name, ...] = (
    Name("LLM", "generate_async", _LLM),
    Name("LLM", "shutdown", _LLM),
    Name("LLM", "_check_health", _LLM, "the state of LLM._executor is asked (is_shutdown)"),
    Name("LLM", "_collective_rpc", _LLM, "new weights by loading the LLM anew"),
    Name("LLM.generate_async", "inputs", _LLM),
    Name("LLM.generate_async", "sampling_params", _LLM),
    Name("LLM.generate_async", "streaming", _LLM),
    Name("LLM.generate_async", "lora_request", _LLM, "the parameter loras is refused"),
    Name("LLM.generate_async", "cache_salt", _LLM, "flush loads the LLM anew, if there is reuse"),
    Name("SamplingParams", "end_id", _SAMPLING),
    Name("SamplingParams", "pad_id", _SAMPLING),
    Name("SamplingParams", "ignore_eos", _SAMPLING),
    Name("SamplingParams", "stop_token_ids", _SAMPLING),
    Name("SamplingParams", "include_stop_str_in_output", _SAMPLING),
    Name("SamplingParams", "max_tokens", _SAMPLING),
    Name("SamplingParams", "temperature", _SAMPLING),
    Name("SamplingParams", "top_k", _SAMPLING),
    Name("SamplingParams", "top_p", _SAMPLING),
    Name("SamplingParams", "seed", _SAMPLING),
    Name("SamplingParams", "repetition_penalty", _SAMPLING),
    Name("SamplingParams", "presence_penalty", _SAMPLING),
    Name("SamplingParams", "frequency_penalty", _SAMPLING),
    Name("SamplingParams", "logprobs", _SAMPLING),
    Name("SamplingParams", "detokenize", _SAMPLING),
    Name(
        "SamplingParams",
        "logprobs_mode",
        _SAMPLING,
        "log probs are raw; the parameter log_prob_mode=processed is refused",
    ),
    Name("SamplingParams", "logprobs_simple_format", _SAMPLING, "a dict for each token is read"),
    Name("SamplingParams", "guided_decoding", _SAMPLING, "the parameter guided_decoding is refused"),
    Name("GuidedDecodingParams", "json_object", _SAMPLING, "the parameter guided_decoding is refused"),
    Name("GuidedDecodingParams", "json", _SAMPLING, "the parameter guided_decoding is refused"),
    Name("GuidedDecodingParams", "regex", _SAMPLING, "the parameter guided_decoding is refused"),
    Name("GuidedDecodingParams", "grammar", _SAMPLING, "the parameter guided_decoding is refused"),
    Name("KvCacheConfig", "enable_block_reuse", _ARGS),
    Name("KvCacheConfig", "free_gpu_memory_fraction", _ARGS),
    Name("LoRARequest", "lora_name", _REQUEST, "the parameter loras is refused"),
    Name("LoRARequest", "lora_int_id", _REQUEST, "the parameter loras is refused"),
    Name("LoRARequest", "lora_path", _REQUEST, "the parameter loras is refused"),
    Name("LoraConfig", "lora_target_modules", _LORA, "the parameter loras is refused"),
    Name("LoraConfig", "max_lora_rank", _LORA, "the parameter loras is refused"),
    Name("LoraConfig", "max_loras", _LORA, "the parameter loras is refused"),
    Name("LoraConfig", "max_cpu_loras", _LORA, "the parameter loras is refused"),
    Name("RequestOutput", "outputs", _RESULT),
    Name("RequestOutput", "finished", _RESULT),
    Name("RequestOutput", "abort", _RESULT),
    Name("RequestOutput", "cached_tokens", _RESULT, "0 cached tokens are reported (an attribute of instances)"),
    Name("CompletionOutput", "token_ids", _RESULT),
    Name("CompletionOutput", "logprobs", _RESULT),
    Name("CompletionOutput", "finish_reason", _RESULT),
    Name("Logprob", "logprob", _RESULT, "a float is read"),
)

_GUIDED = {name for name in NAMES if name.owner == "GuidedDecodingParams" or name.name == "guided_decoding"}
_LORAS = {name for name in NAMES if name.owner in ("LoRARequest", "LoraConfig") or name.name == "lora_request"}


@dataclass(frozen=True, slots=True)
class Features:
    """What the version at hand has. ``logprobs`` is the value of ``SamplingParams.logprobs`` that gives each sampled token's."""

    version: str
    log_probs: LogProbs
    logprobs: int
    simple_logprobs: bool
    logprobs_mode: Any | None
    """The value of ``SamplingParams.logprobs_mode``; None leaves it out."""
    penalties: bool
    truncation: bool
    """Whether processed log probs are those after top_k and top_p."""
    cache_salt: bool
    check_health: bool
    collective_rpc: bool


def read_features(classes: Mapping[str, Any], version: str, settings: Settings) -> Features:
    """``classes`` by name, as in the table, without those that the version lacks.

    Raises: SettingsError, if the version lacks what the settings need.
    """
    missing = {name for name in NAMES if name.name not in names_of(classes.get(name.owner.split(".")[0]), name.owner)}
    _refuse_missing(missing, version, settings)
    lacks = {f"{name.owner}.{name.name}" for name in missing}
    has_mode = "SamplingParams.logprobs_mode" not in lacks
    if not has_mode:
        _check_only_mode(settings, version)
    simple = "SamplingParams.logprobs_simple_format" not in lacks
    return Features(
        version=version,
        log_probs=settings.log_probs,
        # 0, the sampled token alone, came with logprobs_mode. Before, bool(logprobs) switched them on, so 0 gave none.
        logprobs=0 if has_mode or simple else 1,
        simple_logprobs=simple,
        logprobs_mode=_mode(classes, settings, version) if has_mode else None,
        penalties=_has_penalties(version, settings),
        truncation=not settings.has_cpp_sampler,
        cache_salt="LLM.generate_async.cache_salt" not in lacks,
        check_health="LLM._check_health" not in lacks,
        collective_rpc="LLM._collective_rpc" not in lacks,
    )


def names_of(found: Any, owner: str) -> set[str]:
    """The fields of a class, or the arguments of a method of it (``Class.method``)."""
    if found is None:
        return set()
    if "." in owner:
        return set(inspect.signature(getattr(found, owner.split(".")[1])).parameters)
    fields = {field.name for field in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else set()
    return fields | set(getattr(found, "model_fields", ())) | set(dir(found))


def _refuse_missing(missing: set[Name], version: str, settings: Settings) -> None:
    needed = {name for name in missing if not name.without}
    reason = "which this model cannot do without"
    if not needed and settings.guides:
        needed, reason = missing & _GUIDED, "so the parameter guided_decoding must be none"
    if not needed and settings.loras:
        needed, reason = missing & _LORAS, "so the parameter loras must be empty"
    if needed:
        first = min(needed, key=lambda name: (name.owner, name.name))
        raise SettingsError(f"TensorRT-LLM {version} has no {first.owner}.{first.name} ({first.source}), {reason}")


def _mode(classes: Mapping[str, Any], settings: Settings, version: str) -> Any:
    modes = classes.get("LogprobMode")
    value = getattr(modes, settings.log_probs.name, None)
    if modes is not None and value is None:
        raise SettingsError(
            f"parameter log_prob_mode: TensorRT-LLM {version} has no LogprobMode.{settings.log_probs.name}"
        )
    return str(settings.log_probs) if value is None else value


def _check_only_mode(settings: Settings, version: str) -> None:
    """A version without the choice: ``TorchSampler`` takes raw logits, ``TRTLLMSampler`` those after temperature and penalties."""
    only = LogProbs.PROCESSED if settings.has_cpp_sampler else LogProbs.RAW
    if settings.log_probs is not only:
        raise SettingsError(
            f"parameter log_prob_mode: {settings.log_probs}, but TensorRT-LLM {version} with this sampler has {only} log probs "
            "only (there is no SamplingParams.logprobs_mode)"
        )


def _has_penalties(version: str, settings: Settings) -> bool:
    if settings.penalties is not Penalties.AUTO:
        return settings.penalties is Penalties.ON
    try:
        return settings.has_cpp_sampler or Version(version) >= PENALTIES_SINCE
    except InvalidVersion:
        return False
