"""LoRA adapters: what the LLM is told of them when it loads, and what a request says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .library import Library
from .settings import SettingsError


class Adapters:
    """The adapters of the parameter ``loras`` by name. Their numbers, by which the engine knows them, never change."""

    def __init__(self, folders: Mapping[str, Path], library: Library) -> None:
        self._folders = folders
        self._numbers = {name: number for number, name in enumerate(folders, start=1)}
        self._library = library

    def llm_args(self) -> dict[str, Any]:
        """Raises: SettingsError, if an adapter cannot be read."""
        if not self._folders:
            return {}
        configs = {name: _read_config(name, folder) for name, folder in self._folders.items()}
        count = len(configs)
        return {
            "lora_config": self._library["LoraConfig"](
                lora_target_modules=self._target_modules(configs),
                max_lora_rank=max(int(config["r"]) for config in configs.values()),
                max_loras=count,
                max_cpu_loras=count,
            )
        }

    def request(self, name: str) -> Any | None:
        """The LLM's own word for the adapter of that name; None for the model as it is."""
        if not name:
            return None
        folder = self._folders[name]
        return self._library["LoRARequest"](lora_name=name, lora_int_id=self._numbers[name], lora_path=str(folder))

    def _target_modules(self, configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """In TensorRT-LLM's names (``attn_q``), from the adapters' (``q_proj``)."""
        names = self._library.names.get("get_default_trtllm_modules_to_hf_modules")
        if names is None:
            raise SettingsError(
                f"parameter loras: TensorRT-LLM {self._library.version} does not say what it calls a model's modules"
            )
        by_theirs = {theirs: ours for ours, theirs in names().items()}
        wanted = {module for config in configs.values() for module in config["target_modules"]}
        if unknown := sorted(wanted - set(by_theirs)):
            raise SettingsError(f"parameter loras: TensorRT-LLM knows no module {unknown[0]!r}")
        return sorted(by_theirs[module] for module in wanted)


def _read_config(name: str, folder: Path) -> dict[str, Any]:
    path = folder / "adapter_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        int(config["r"])
        list(config["target_modules"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"parameter loras: {name}: {path} cannot be read: {error!r}") from error
    return dict(config)
