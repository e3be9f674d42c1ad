"""GGUF file -> plain float32 checkpoint folder: ``python -m engine.dequantize GGUF TARGET TEMPLATE``.

It is a process of its own so that the caller neither imports torch nor keeps the weights in its memory. The folder
holds ``config.json``, ``generation_config.json``, ``model.safetensors``, ``tokenizer.json``, ``tokenizer_config.json``
and ``chat_template.jinja`` (the text of the file TEMPLATE), and depends on nothing but the arguments.
"""

from __future__ import annotations

import sys
from pathlib import Path


def dequantize(gguf: Path, target: Path, chat_template: str) -> None:
    """Writes the folder ``target``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    quantized = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The library will not save a model that was read from GGUF, though its weights are plain by now.
    config = quantized.config
    del config.quantization_config
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantized.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = quantized.generation_config
    model.save_pretrained(target)

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.chat_template = chat_template
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(target)


def main() -> None:
    gguf, target, template = (Path(argument) for argument in sys.argv[1:])
    dequantize(gguf, target, template.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
