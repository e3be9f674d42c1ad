"""The scripted model as TensorRT-LLM's C++ model would answer; see the package. It runs inside Triton, beside ``scripted_model``.

- log probs are all so far, ids are new ones; a token that ``end_id`` names is not returned, nor its log prob;
- no finish reason, no weight version; reused blocks in every response, if performance is asked for;
- a refusal is an error like any other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import scripted_model
from .common.parameters import Parameters
from .common.triton import TritonReader, TritonSender


class CumulativeSender(TritonSender):
    def __init__(self, request: Any, block_size: int) -> None:
        super().__init__(request)
        self._block_size = block_size
        end_id = TritonReader(request).tensor("end_id")
        self._end_id = None if end_id is None else int(end_id.reshape(-1)[0])
        self._log_probs: list[float] = []

    def send(self, outputs: Any, *, final: bool) -> None:
        if "output_ids" not in outputs:
            super().send({}, final=final)
            return
        ids = outputs["output_ids"].reshape(-1).tolist()
        log_probs = outputs["output_log_probs"].reshape(-1).tolist()
        if ids and ids[-1] == self._end_id:
            ids, log_probs = ids[:-1], log_probs[:-1]
        self._log_probs += log_probs
        blocks = int(outputs["cached_tokens"][0, 0]) // self._block_size if final else 0
        answer = {
            "output_ids": np.array(ids, np.int32).reshape(1, 1, -1),
            "sequence_length": np.array([[len(ids)]], np.int32),
            "output_log_probs": np.array(self._log_probs, np.float32).reshape(1, 1, -1),
            "cum_log_probs": np.array([[sum(self._log_probs)]], np.float32),
            "kv_cache_reused_blocks": np.array([[blocks]], np.int32),
        }
        super().send(answer, final=final)

    def fail(self, message: str) -> None:
        super().fail(message.removeprefix("invalid request: "))


class TritonPythonModel(scripted_model.TritonPythonModel):
    def initialize(self, args: dict[str, str]) -> None:
        self._block_size = Parameters.from_model_config(args["model_config"]).integer("block_size")
        super().initialize(args)

    def execute(self, requests: list[Any]) -> None:
        self._front.execute((_Reader(request), CumulativeSender(request, self._block_size)) for request in requests)


class _Reader(TritonReader):
    """Inputs that the configuration reshapes to scalars, with their element as an array again."""

    def tensor(self, name: str) -> Any:
        array = super().tensor(name)
        return array.reshape(1, 1) if array is not None and array.size == 1 and array.ndim < 2 else array
