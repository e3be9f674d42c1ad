"""TensorRT-LLM's classes, wherever the version at hand keeps them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .settings import SettingsError

_PLACES: Mapping[str, tuple[str, ...]] = {
    "LLM": ("tensorrt_llm",),
    "SamplingParams": ("tensorrt_llm",),
    "KvCacheConfig": ("tensorrt_llm.llmapi",),
    "GuidedDecodingParams": ("tensorrt_llm.llmapi", "tensorrt_llm.sampling_params"),
    "RequestOutput": ("tensorrt_llm.llmapi", "tensorrt_llm.llmapi.llm"),
    "CompletionOutput": ("tensorrt_llm.llmapi", "tensorrt_llm.executor.result"),
    "Logprob": ("tensorrt_llm.executor.result",),
    "LogprobMode": ("tensorrt_llm.sampling_params",),
    "LoRARequest": ("tensorrt_llm.executor", "tensorrt_llm.executor.request"),
    "LoraConfig": ("tensorrt_llm.lora_helper", "tensorrt_llm.lora_manager"),
    "get_default_trtllm_modules_to_hf_modules": ("tensorrt_llm.lora_helper", "tensorrt_llm.lora_manager"),
    "update_llm_args_with_extra_dict": ("tensorrt_llm.llmapi.llm_utils", "tensorrt_llm.llmapi.llm_args"),
}
"""Modules in which to look, in this order."""


@dataclass(frozen=True, slots=True)
class Library:
    """``names``: what of ``_PLACES`` there is."""

    version: str
    names: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.names[name]


def load_library() -> Library:
    """Raises: SettingsError, if TensorRT-LLM cannot be imported here."""
    try:
        package = importlib.import_module("tensorrt_llm")
    except ImportError as error:
        raise SettingsError(
            f"TensorRT-LLM cannot be imported by the server's Python ({error}); serve this model inside Triton's TensorRT-LLM "
            "container, or install tensorrt-llm 1.2.1 or later"
        ) from error
    found = {name: _find(name, modules) for name, modules in _PLACES.items()}
    return Library(str(package.__version__), {name: value for name, value in found.items() if value is not None})


def _find(name: str, modules: tuple[str, ...]) -> Any:
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    return None
