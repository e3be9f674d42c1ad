"""LoRA adapters over the model's own weights, which stay as they are (Hu et al. 2021): ``y = W x + scale * B (A x)``.

An adapter is a folder as PEFT writes it: ``adapter_config.json`` and ``adapter_model.safetensors``, where the matrices of the
module ``M`` are called ``base_model.model.M.lora_A.weight``, [r, in], and ``...lora_B.weight``, [out, r]. ``scale`` is
``lora_alpha / r``, or over the root of r with ``use_rslora``. What changes the sum otherwise (DoRA, trained biases or embeddings,
ranks by pattern) is refused: it would be sampled from without being there.

Hooks add the second term, so the model's parameters keep their names and can be replaced beneath an adapter. All requests of one
forward pass have the same adapter; ``batches`` sees to that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from .settings import SettingsError

_PREFIX = "base_model.model."
_SUFFIXES = {".lora_A.weight": "down", ".lora_B.weight": "up"}
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
}
"""Settings of an adapter, with the values under which the sum above is all there is."""


@dataclass(frozen=True, slots=True)
class _Change:
    """What an adapter adds to one module. ``down`` [r, in]; ``up`` [out, r], already scaled."""

    down: Tensor
    up: Tensor


class Adapters:
    """The adapters of one model by name. Used from one thread."""

    def __init__(self, model: nn.Module, folders: Mapping[str, Path]) -> None:
        """Raises: SettingsError, if an adapter cannot be read or does not fit the model."""
        self._in_use = ""
        modules = dict(model.named_modules())
        changes: dict[str, dict[str, _Change]] = {}
        for name, folder in folders.items():
            for module, change in _read(name, folder, modules):
                changes.setdefault(module, {})[name] = change
        for module, by_adapter in changes.items():
            modules[module].register_forward_hook(self._hook(by_adapter))

    @contextmanager
    def using(self, name: str) -> Iterator[None]:
        """Forward passes in this block are with the adapter of that name; with none if it is empty."""
        self._in_use = name
        try:
            yield
        finally:
            self._in_use = ""

    def _hook(self, by_adapter: Mapping[str, _Change]) -> Any:
        def add(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            change = by_adapter.get(self._in_use)
            if change is None:
                return None
            return output + inputs[0] @ change.down.T @ change.up.T

        return add


def _read(name: str, folder: Path, modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, _Change]]:
    scale = _scale(name, folder)
    pairs: dict[str, dict[str, Tensor]] = {}
    for key, tensor in _tensors(name, folder).items():
        suffix = next((suffix for suffix in _SUFFIXES if key.endswith(suffix)), None)
        if suffix is None or not key.startswith(_PREFIX):
            raise SettingsError(f"parameter loras: {name}: {key} is not a LoRA matrix")
        pairs.setdefault(key.removeprefix(_PREFIX).removesuffix(suffix), {})[_SUFFIXES[suffix]] = tensor
    for path, pair in pairs.items():
        yield path, _change(f"parameter loras: {name}: {path}", modules.get(path), pair, scale)


def _scale(name: str, folder: Path) -> float:
    try:
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"parameter loras: {name}: {folder}/adapter_config.json cannot be read: {error!r}"
        ) from error
    for key, neutral in _NEUTRAL.items():
        if config.get(key, neutral[0]) not in neutral:
            raise SettingsError(f"parameter loras: {name}: {key} = {config[key]!r} is not supported")
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _tensors(name: str, folder: Path) -> dict[str, Tensor]:
    try:
        return load_file(folder / "adapter_model.safetensors")
    except (OSError, SafetensorError) as error:
        raise SettingsError(f"parameter loras: {name}: {folder}/adapter_model.safetensors: {error}") from error


def _change(whose: str, module: nn.Module | None, pair: Mapping[str, Tensor], scale: float) -> _Change:
    if not isinstance(module, nn.Linear):
        raise SettingsError(f"{whose}: the model has no such linear layer")
    down, up = pair.get("down"), pair.get("up")
    if down is None or up is None:
        raise SettingsError(f"{whose}: one of lora_A and lora_B is missing")
    fits = down.shape[1:] == (module.in_features,) and up.shape == (module.out_features, down.shape[0])
    if not fits:
        raise SettingsError(f"{whose}: shapes {list(down.shape)} and {list(up.shape)} do not fit {module}")
    if not (down.isfinite().all() and up.isfinite().all()):
        raise SettingsError(f"{whose}: values that are not finite")
    weight = module.weight
    with torch.no_grad():
        return _Change(down.to(weight), (up.float() * scale).to(weight))
