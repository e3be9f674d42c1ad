"""The stand-in's model: real logits of a tiny network with random weights, each of which depends on the whole prefix."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

WIDTH = 16
DECAY = 0.8
"""How much of a token is left in the state at the next one."""


class Network:
    """``logits = head @ tanh(sum of decayed embeddings)``. An adapter adds to the head."""

    def __init__(self, folder: Path) -> None:
        state = {}
        for file in sorted(folder.glob("*.safetensors")):
            state |= load_file(file)
        self.embedding, self.head = state["embedding.weight"], state["head.weight"]

    def logits(self, ids: Sequence[int], adapter: Tensor | None = None) -> Tensor:
        """float32 [V]: of the token after ``ids``."""
        age = torch.arange(len(ids) - 1, -1, -1)
        state = (self.embedding[torch.tensor(ids)] * (DECAY**age)[:, None]).sum(0)
        head = self.head if adapter is None else self.head + adapter
        return head @ torch.tanh(state)


def write_checkpoint(folder: Path, seed: int, vocab_size: int = 64, max_seq_len: int = 256) -> Path:
    """A transformers-like checkpoint folder with random weights."""
    folder.mkdir(parents=True)
    write_weights(folder / "model.safetensors", seed, vocab_size)
    config = {"vocab_size": vocab_size, "max_position_embeddings": max_seq_len}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_weights(file: Path, seed: int, vocab_size: int = 64) -> Path:
    generator = torch.Generator().manual_seed(seed)
    state = {
        "embedding.weight": torch.randn(vocab_size, WIDTH, generator=generator),
        "head.weight": torch.randn(vocab_size, WIDTH, generator=generator) * 0.7,
    }
    save_file(state, file)
    return file


def write_adapter(folder: Path, seed: int, vocab_size: int = 64, rank: int = 2) -> Path:
    """An adapter of the head, in PEFT's format."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    prefix = "base_model.model.head"
    state = {
        f"{prefix}.lora_A.weight": torch.randn(rank, WIDTH, generator=generator),
        f"{prefix}.lora_B.weight": torch.randn(vocab_size, rank, generator=generator),
    }
    save_file(state, folder / "adapter_model.safetensors")
    config = {"r": rank, "lora_alpha": rank, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def read_adapter(folder: Path) -> Tensor:
    state = load_file(folder / "adapter_model.safetensors")
    prefix = "base_model.model.head"
    return state[f"{prefix}.lora_B.weight"] @ state[f"{prefix}.lora_A.weight"]
