"""The model's own parameters, resolved for the device that it runs on.

    model_dir           a transformers checkpoint folder
    device              cpu, cuda, cuda:N, or auto: CUDA where there is one
    dtype               float32, bfloat16, float16, or auto: float32 on the CPU, the checkpoint's own on CUDA
    num_threads         torch's threads on the CPU; 0: one for each core that this process may use
    page_size           tokens per KV cache page; a prompt's prefix is reused in whole pages
    num_blocks          pages of the KV cache, of which each adapter has one of its own; 0: on the CPU room for two sequences
                        of max_seq_len, on CUDA what memory allows
    max_batch_tokens    tokens in one forward pass, so also how much of a prompt is prefilled between two steps that
                        decode; 0: 128 on the CPU, 2048 on CUDA
    max_batch_requests  requests in one forward pass; more wait
    guided_decoding     kinds of guides that requests may have, from ``OFFERED_GUIDES``, or none; needs model_dir/tokenizer.json

``max_seq_len``, ``vocab_size`` and ``weight_version`` are parameters of every model.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MAX_BATCH_TOKENS = {"cpu": 128, "cuda": 2048}
_SEQUENCES_ON_CPU = 2
OFFERED_GUIDES = frozenset({"json", "json_schema", "regex", "lark"})
"""By the names of the client's ``GuideKind``; ``guided`` compiles them."""

_MIN_PAGE_SIZE = 4
"""The library's own limit."""


class SettingsError(ValueError):
    """A parameter has no meaning here; the message names it."""


class ParameterReads(Protocol):
    """``common.parameters.Parameters``."""

    def text(self, name: str, default: str | None = None) -> str: ...

    def integer(self, name: str, default: int | None = None, *, minimum: int = 0) -> int: ...


class Limits(Protocol):
    """``common.requests.Limits``."""

    vocab_size: int
    max_seq_len: int
    guides: frozenset[str]
    loras: frozenset[str]


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Sizes of the KV cache and of a forward pass. ``num_blocks`` None: as many as memory allows."""

    page_size: int
    num_blocks: int | None
    max_batch_tokens: int
    max_batch_requests: int


@dataclass(frozen=True, slots=True)
class Settings:
    """``dtype`` None: the checkpoint's."""

    model_dir: Path
    device: torch.device
    dtype: torch.dtype | None
    num_threads: int
    max_seq_len: int
    vocab_size: int
    weight_version: int
    cache: CacheSettings
    has_guides: bool


def read_settings(parameters: ParameterReads, limits: Limits) -> Settings:
    """Raises: SettingsError, or the reads' own error."""
    device = _device(parameters.text("device", "auto"))
    return Settings(
        model_dir=Path(parameters.text("model_dir")),
        device=device,
        dtype=_dtype(parameters.text("dtype", "auto"), device),
        num_threads=parameters.integer("num_threads", 0) or len(os.sched_getaffinity(0)),
        max_seq_len=limits.max_seq_len,
        vocab_size=limits.vocab_size,
        weight_version=parameters.integer("weight_version", 0),
        cache=_cache(parameters, device, limits),
        has_guides=_has_guides(limits.guides),
    )


def _has_guides(kinds: frozenset[str]) -> bool:
    if unknown := sorted(kinds - OFFERED_GUIDES):
        raise SettingsError(
            f"parameter guided_decoding: {unknown[0]!r} is none of {', '.join(sorted(OFFERED_GUIDES))}; none switches it off"
        )
    return bool(kinds)


def _cache(parameters: ParameterReads, device: torch.device, limits: Limits) -> CacheSettings:
    max_seq_len = limits.max_seq_len
    page_size = parameters.integer("page_size", 16, minimum=_MIN_PAGE_SIZE)
    per_sequence = -(-max_seq_len // page_size)
    num_blocks = parameters.integer("num_blocks", 0) or (
        per_sequence * _SEQUENCES_ON_CPU if device.type == "cpu" else None
    )
    if num_blocks is None and limits.loras:
        raise SettingsError(
            "parameter num_blocks: needed with loras on CUDA, for each adapter has a KV cache of its own"
        )
    if num_blocks is not None and num_blocks < per_sequence:
        raise SettingsError(
            f"parameter num_blocks: {num_blocks} pages of {page_size} tokens do not hold one sequence of max_seq_len "
            f"{max_seq_len}; that takes {per_sequence}"
        )
    return CacheSettings(
        page_size=page_size,
        num_blocks=num_blocks,
        max_batch_tokens=parameters.integer("max_batch_tokens", 0) or _MAX_BATCH_TOKENS[device.type],
        max_batch_requests=parameters.integer("max_batch_requests", 64, minimum=1),
    )


def _device(name: str) -> torch.device:
    available = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if available else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingsError(f"parameter device: {name!r} is not auto, cpu, cuda or cuda:N") from None
    if device.type not in _MAX_BATCH_TOKENS:
        raise SettingsError(f"parameter device: {name!r} is not auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and not available:
        raise SettingsError(f"parameter device: {name!r}, but torch sees no CUDA device here")
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype | None:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else None
    if name not in _DTYPES:
        raise SettingsError(f"parameter dtype: {name!r} is not auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]
