"""The model's weights: loaded once, replaced in place later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from .settings import Settings, SettingsError


class WeightsError(ValueError):
    """The new weights cannot be taken; the model is as before."""


def load_model(settings: Settings) -> Any:
    """The checkpoint, in evaluation mode on its device.

    ``sdpa`` is the attention that batches on every device. A flash kernel would have to be downloaded.

    Raises: SettingsError, if the checkpoint contradicts the parameters.
    """
    model = AutoModelForCausalLM.from_pretrained(
        settings.model_dir, dtype=settings.dtype or "auto", attn_implementation="sdpa", local_files_only=True
    )
    config = model.config.get_text_config()
    if settings.vocab_size != config.vocab_size:
        raise SettingsError(
            f"parameter vocab_size: {settings.vocab_size}, but the model has {config.vocab_size} tokens"
        )
    if settings.max_seq_len > config.max_position_embeddings:
        raise SettingsError(
            f"parameter max_seq_len: {settings.max_seq_len} is beyond the model's {config.max_position_embeddings}"
        )
    return model.eval().to(settings.device)


def replace_weights(model: nn.Module, path: Path) -> None:
    """Copy the safetensors state at ``path``, a file or a folder of them, over the model's, in place.

    Everything is checked before anything is written: the state must name every weight of the model (of tied ones, one
    name is enough), no other, in the same shapes. Its dtype may differ, but numbers with a point have to come as such: integers are
    what a quantised checkpoint has, which mean nothing without their scales.

    Raises: WeightsError.
    """
    state = _read_state(path)
    own = model.state_dict()
    _check(state, own)
    with torch.no_grad():
        for name, tensor in state.items():
            own[name].copy_(tensor)
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # the batch computes on a stream of its own


def _read_state(path: Path) -> dict[str, Tensor]:
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise WeightsError(f"{path} holds no *.safetensors file")
    state: dict[str, Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                state |= {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 (not a mapping)
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{file} cannot be read as safetensors: {error}") from error
    return state


def _check(state: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    if unknown := sorted(set(state) - set(own)):
        raise WeightsError(f"the model has no weight {unknown[0]} ({len(unknown)} such)")
    wrong = [name for name in state if state[name].shape != own[name].shape]
    if wrong:
        name = wrong[0]
        raise WeightsError(f"{name} has shape {list(state[name].shape)}, the model's {list(own[name].shape)}")
    if other := [name for name in state if state[name].is_floating_point() != own[name].is_floating_point()]:
        name = other[0]
        raise WeightsError(f"{name} has dtype {state[name].dtype}, the model's {own[name].dtype} ({len(other)} such)")
    written = {own[name].data_ptr() for name in state}
    if missing := sorted(name for name in own if own[name].data_ptr() not in written):
        raise WeightsError(f"the weight {missing[0]} is missing ({len(missing)} such)")
    broken = [name for name, tensor in state.items() if tensor.is_floating_point() and not _is_finite(tensor)]
    if broken:
        raise WeightsError(f"{broken[0]} has values that are not finite ({len(broken)} such)")


def _is_finite(tensor: Tensor) -> bool:
    """By the smallest and the largest value, which are NaN if any is: one pass without copies, in a fifth of ``isfinite``'s time.
    Requests wait for it. Of one byte, numbers have no arithmetic of their own."""
    if not tensor.numel():
        return True
    numbers = tensor.float() if tensor.itemsize == 1 else tensor
    return all(bool(extreme.isfinite()) for extreme in numbers.aminmax())
