"""New weights into the running workers of an ``LLM`` with ray (``tensorrt_llm/llmapi/rlhf_utils.py``, ``WorkerExtension``).

Each worker shares a GPU with this process: the tensors are put on every GPU here, bucket by bucket, and the workers read them there
through CUDA's handles for other processes. A call without handles ends the update; it also drops the prefix cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

BUCKET_BYTES = 1 << 30
"""Of tensors that are on a GPU twice for a moment."""


def local_devices() -> list[torch.device]:
    """The GPUs that the workers are on."""
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


def load_in_place(llm: Any, files: list[Path], bucket_bytes: int = BUCKET_BYTES) -> None:
    """Raises: whatever a worker raises; the weights are then part old, part new, and the LLM must be loaded anew."""
    devices = local_devices()
    for bucket in buckets(files, bucket_bytes):
        # The tensors must live until every worker has copied them: they are in ``held`` until the call is back.
        held = {device: {name: tensor.to(device) for name, tensor in bucket.items()} for device in devices}
        handles = {device_name(device): handles_of(tensors) for device, tensors in held.items()}
        llm._collective_rpc("update_weights", (handles,))
    llm._collective_rpc("update_weights", (None,))


def buckets(files: list[Path], bucket_bytes: int) -> Iterator[dict[str, Tensor]]:
    """All tensors of the files by name, in groups of up to ``bucket_bytes``, larger ones alone."""
    bucket: dict[str, Tensor] = {}
    size = 0
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                tensor = tensors.get_tensor(name)
                if bucket and size + tensor.nbytes > bucket_bytes:
                    yield bucket
                    bucket, size = {}, 0
                bucket[name] = tensor
                size += tensor.nbytes
    if bucket:
        yield bucket


def handles_of(tensors: dict[str, Tensor]) -> list[tuple[str, Any]]:
    """``(name, (function, arguments))``, which rebuild the tensor in another process."""
    return [(name, reduce_tensor(tensor)) for name, tensor in tensors.items()]


def device_name(device: torch.device) -> str:
    """By which a worker finds its own handles (``tensorrt_llm/_torch/utils.py``, ``get_device_uuid``)."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
