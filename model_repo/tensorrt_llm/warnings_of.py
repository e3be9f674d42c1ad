"""Settings that are known to go wrong in a version, for the server's log. Numbers are issues of NVIDIA/TensorRT-LLM."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from .settings import Settings


def known_faults(settings: Settings, version: str) -> Iterator[str]:
    """One line each."""
    if not _is_before_1_3(version):
        return
    cache = settings.llm_args["kv_cache_config"]
    if cache.get("host_cache_size"):
        yield f"TensorRT-LLM {version} with host_cache_size: replies may hold tokens of other prompts (#8813); leave it 0"
    if settings.has_reuse and str(cache.get("dtype", "")).startswith("fp8"):
        yield f"TensorRT-LLM {version} with an FP8 KV cache and reuse: wrong output was seen (#2699); switch one of them off"
    if settings.has_reuse and settings.guides:
        yield f"TensorRT-LLM {version} with guided decoding and reuse: a crash was seen (#2660); try both before you rely on it"


def _is_before_1_3(version: str) -> bool:
    try:
        return Version(version) < Version("1.3.0.dev0")
    except InvalidVersion:
        return False
