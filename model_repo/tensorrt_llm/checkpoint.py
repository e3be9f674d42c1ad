"""New weights on disk: looked at before the running engine is given up for them.

``path`` is a folder with a checkpoint, or, as for the other models, a safetensors file or a folder of them without the rest; then
the rest (``config.json``, the tokenizer) is the first checkpoint's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

_WEIGHT_FILES = "*.safetensors"
_INDEX_FILE = "model.safetensors.index.json"


class CheckpointError(ValueError):
    """The new weights cannot be taken; nothing has changed."""


def weight_files(path: Path) -> list[Path]:
    """The safetensors files at ``path``, each of which can be read. Raises: CheckpointError."""
    files = sorted(path.glob(_WEIGHT_FILES)) if path.is_dir() else [path]
    if not files:
        raise CheckpointError(f"{path} holds no {_WEIGHT_FILES} file")
    if missing := sorted(_indexed(path) - {file.name for file in files}):
        raise CheckpointError(f"{path} lacks {missing[0]}, which its {_INDEX_FILE} names ({len(missing)} such)")
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                tensors.keys()
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} cannot be read as safetensors: {error}") from error
    return files


def check_names(files: list[Path], base: Path) -> None:
    """Bare weights must have the names and shapes of those in ``base``, if it holds any as safetensors.

    Raises: CheckpointError.
    """
    own = _shapes(sorted(base.glob(_WEIGHT_FILES)))
    new = _shapes(files)
    if not own:
        return
    if missing := sorted(set(own) - set(new) - _tied(base)):
        raise CheckpointError(f"the weight {missing[0]} is missing ({len(missing)} such)")
    if unknown := sorted(set(new) - set(own)):
        raise CheckpointError(f"the model has no weight {unknown[0]} ({len(unknown)} such)")
    if wrong := sorted(name for name in new if own[name] != new[name]):
        raise CheckpointError(f"{wrong[0]} has shape {new[wrong[0]]}, the model's {own[wrong[0]]}")


def joined(files: list[Path], base: Path, folder: Path) -> Path:
    """``folder``, filled with links to the weights ``files`` and the rest of ``base``."""
    # An index would point at the old files.
    rest = [file for file in base.iterdir() if file.suffix != ".safetensors" and file.name != _INDEX_FILE]
    for file in rest + files:
        (folder / file.name).symlink_to(file.resolve())
    return folder


def vocab_size(folder: Path) -> int | None:
    """As ``config.json`` has it, nested in ``text_config`` or not. Raises: CheckpointError."""
    try:
        config: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}/config.json cannot be read: {error}") from error
    text = config.get("text_config")
    size = (text if isinstance(text, dict) else config).get("vocab_size", config.get("vocab_size"))
    return size if isinstance(size, int) else None


def _indexed(path: Path) -> set[str]:
    """The files that the index of a folder names."""
    index = path / _INDEX_FILE
    if not index.is_file():
        return set()
    try:
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{index} cannot be read: {error!r}") from error


def _tied(base: Path) -> set[str]:
    """A head that is the embedding may be left out."""
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    return {"lm_head.weight"} if config.get("tie_word_embeddings") else set()


def _shapes(files: list[Path]) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {}
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            shapes |= {name: list(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    return shapes
