"""A LoRA adapter merged into a plain model's weights: ``W + scale * B A`` for every module that it has matrices for.

The folder is as PEFT writes it (``adapter_config.json``, ``adapter_model.safetensors``); ``scale`` is ``lora_alpha / r``, over the
root of r with ``use_rslora`` (Hu et al. 2021; Kalajdzievski 2023). For verification: nothing here is shared with what sampled.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
_PREFIX = "base_model.model."


def merge_adapter(model: Any, folder: Path) -> None:
    """Raises: OSError, if the folder is no adapter of this model."""
    try:
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        rank, alpha = config["r"], config["lora_alpha"]
        state = load_file(folder / "adapter_model.safetensors")
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        modules = dict(model.named_modules())
        with torch.no_grad():
            for name in [name for name in state if name.endswith(_DOWN)]:
                module = modules[name.removeprefix(_PREFIX).removesuffix(_DOWN)]
                change = state[name.removesuffix(_DOWN) + _UP].float() @ state[name].float()
                module.weight += (scale * change).to(module.weight.dtype)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise OSError(f"{folder} is no LoRA adapter of this model: {error!r}") from error
