"""A checkpoint of random weights, shaped like Llama, for checks that need a model of some size and no sense in what it says.

Weights are drawn so that logits spread by about one whatever the size: a token's log prob then depends on its prompt, and a wrong
prompt shows in it.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

HEAD_SIZE = 64
QUERIES_PER_KEY = 4
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)
"""Of a model's folder, what says how text becomes tokens and back; not all models have all of them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """``hidden`` is a multiple of 64; ``max_seq_len`` in tokens; ``dtype`` a name that torch has."""

    layers: int
    hidden: int
    max_seq_len: int
    dtype: str


def copy_tokenizer(source: Path, target: Path) -> None:
    """Raises: FileNotFoundError, if ``source`` has no tokenizer.json."""
    target.mkdir(parents=True, exist_ok=True)
    if not (source / "tokenizer.json").is_file():
        raise FileNotFoundError(f"{source} has no tokenizer.json")
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def make_checkpoint(folder: Path, tokenizer: Path, shape: Shape) -> int:
    """Write it, with the tokenizer of folder ``tokenizer``; gives its number of parameters. Raises: as ``copy_tokenizer``."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    heads = shape.hidden // HEAD_SIZE
    config = LlamaConfig(
        vocab_size=Tokenizer.from_file(str(tokenizer / "tokenizer.json")).get_vocab_size(),
        hidden_size=shape.hidden,
        intermediate_size=4 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // QUERIES_PER_KEY if heads % QUERIES_PER_KEY == 0 else heads,
        max_position_embeddings=shape.max_seq_len,
        initializer_range=shape.hidden**-0.5,
    )
    torch.manual_seed(7)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, shape.dtype))
    parameters = sum(weight.numel() for weight in model.parameters())
    model.save_pretrained(folder)
    copy_tokenizer(tokenizer, folder)
    del model
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # the engine sizes its KV cache by what is free
    return parameters
