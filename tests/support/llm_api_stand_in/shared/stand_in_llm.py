"""``LLM`` of the stand-in, by ``tensorrt_llm/llmapi/llm.py``: what it takes, what it refuses, and in what words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stand_in_executor import Executor, Traits
from stand_in_network import Network, read_adapter
from stand_in_results import RequestOutput

LLM_ARGS = frozenset(
    {
        "model",
        "tokenizer",
        "skip_tokenizer_init",
        "trust_remote_code",
        "dtype",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "moe_expert_parallel_size",
        "max_seq_len",
        "max_batch_size",
        "max_num_tokens",
        "enable_chunked_prefill",
        "kv_cache_config",
        "backend",
        "guided_decoding_backend",
        "lora_config",
        "enable_lora",
        "speculative_config",
        "moe_config",
        "cuda_graph_config",
        "sampler_type",
        "stream_interval",
        "disable_overlap_scheduler",
        "orchestrator_type",
        "ray_worker_extension_cls",
        "allreduce_strategy",
    }
)


@dataclass(slots=True, kw_only=True)
class KvCacheConfig:
    enable_block_reuse: bool = True
    free_gpu_memory_fraction: float = 0.9
    tokens_per_block: int = 32
    host_cache_size: int = 0
    dtype: str = "auto"
    enable_partial_reuse: bool = True


@dataclass(slots=True, kw_only=True)
class GuidedDecodingParams:
    json: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None


@dataclass(slots=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str = ""

    def __post_init__(self) -> None:
        if not Path(self.lora_path).exists():
            raise ValueError(f"lora_path ({self.lora_path}) does not exist.")


@dataclass
class LoraConfig:
    lora_dir: list[str] = field(default_factory=list)
    lora_target_modules: list[str] = field(default_factory=list)
    max_lora_rank: int = 64
    max_loras: int | None = None
    max_cpu_loras: int | None = None


def get_default_trtllm_modules_to_hf_modules() -> dict[str, str]:
    return {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_dense": "o_proj"}


class Tokenizer:
    """Only its end token is asked for."""

    eos_token_id = 2


class StandInLlm:
    """A flavour's ``LLM`` sets ``traits`` and has ``generate_async`` with its version's arguments."""

    traits: Traits

    def __init__(self, model: str | Path, **kwargs: Any) -> None:
        for key in kwargs:
            if key not in LLM_ARGS:
                raise ValueError(f"{type(self).__name__} got invalid argument: {key}")
        self.args: Mapping[str, Any] = kwargs
        self.tokenizer = None if kwargs.get("skip_tokenizer_init") else Tokenizer()
        cache = kwargs.get("kv_cache_config") or KvCacheConfig()
        cache = KvCacheConfig(**cache) if isinstance(cache, dict) else cache
        self._max_seq_len = kwargs.get("max_seq_len") or 256
        network = Network(Path(model))
        traits = self.traits
        if kwargs.get("sampler_type") == "TRTLLMSampler":
            traits = replace(traits, has_penalties=True, has_seeds=True, is_cpp_sampler=True)
        self._executor: Executor | None = Executor(
            network, traits, cache.tokens_per_block, cache.enable_block_reuse, self._max_seq_len
        )
        self._executor.stream_interval = kwargs.get("stream_interval", 1)

    def shutdown(self) -> None:
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None

    def _submit(self, inputs: Any, params: Any, lora: LoRARequest | None, salt: str | None) -> RequestOutput:
        if params.end_id is None and self.tokenizer is None:
            raise ValueError(
                "tokenizer is required to reset end_id if it is None, or you can explicitly specify the end_id for sampling_params"
            )
        limit = self.args.get("max_num_tokens")
        if limit and len(inputs) > limit and not self.args.get("enable_chunked_prefill"):
            raise ValueError(f"The sum of prompt length ({len(inputs)}) should not exceed max_num_tokens ({limit})")
        assert self._executor is not None
        adapter = None if lora is None else read_adapter(Path(lora.lora_path))
        return self._executor.submit(list(inputs), params, salt, lora.lora_int_id if lora else 0, adapter)
