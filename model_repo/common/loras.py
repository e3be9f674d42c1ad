"""The LoRA adapters that a model has loaded: its parameter ``loras``, ``NAME=FOLDER`` with commas between them.

A request names one of them in the input ``lora``, or none. Folders are in PEFT's format (``adapter_config.json``,
``adapter_model.safetensors``); a model without weights looks at the names only.
"""

from __future__ import annotations

from pathlib import Path

from .parameters import ParameterError


def read_loras(listed: str) -> dict[str, Path]:
    """The parameter as folders by name. Raises: ParameterError."""
    loras: dict[str, Path] = {}
    for item in filter(None, listed.split(",")):
        name, _, folder = item.partition("=")
        if not name or not folder:
            raise ParameterError(f"parameter loras: {item!r} is not NAME=FOLDER")
        if name in loras:
            raise ParameterError(f"parameter loras: {name!r} is there twice")
        loras[name] = Path(folder)
    return loras
