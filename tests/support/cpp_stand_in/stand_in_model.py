"""The scripted model as TensorRT-LLM's C++ model would answer; see the package. It runs inside Triton, beside ``scripted_model``.

What differs, from ``inflight_batcher_llm``, ``llmRequest.cpp`` and ``executorImpl.cpp`` of the 1.2 line:

- Log probs are all so far, ids are new ones; a token that ``end_id`` names is not returned, nor its log prob.
- There is no finish reason and no weight version. Reused blocks are in every response if ``return_perf_metrics`` asks for figures:
  they are known once the prompt was taken up.
- A request that wants no ``output_ids`` or no ``sequence_length`` is an error once there is something to say.
- A limit beyond the context's room is lowered without a word; a prompt that leaves no room is refused.
- Errors are told in the executor's words, a refusal among them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import scripted_model
from .common.parameters import Parameters
from .common.triton import TritonReader, TritonSender

REFUSAL = "invalid request: "
ALWAYS_WANTED = ("output_ids", "sequence_length")


class CumulativeSender(TritonSender):
    """``cached_tokens`` tells them of a live request, by its id; ``block_size`` in tokens."""

    def __init__(self, request: Any, block_size: int, cached_tokens: Callable[[str], int]) -> None:
        super().__init__(request)
        reader = TritonReader(request)
        self._id = reader.request_id()
        self._end_id = _scalar(reader, "end_id")
        self._told_performance = bool(_scalar(reader, "return_perf_metrics"))
        self._block_size = block_size
        self._cached_tokens = cached_tokens
        self._cached: int | None = None
        self._log_probs: list[float] = []

    def send(self, outputs: Any, *, final: bool) -> None:
        if "output_ids" not in outputs:
            super().send({}, final=final)
            return
        for name in ALWAYS_WANTED:
            if name not in self._requested:
                words = f"{name} tensor must be present in list of output tensors"
                super().fail(f"Error encountered while populating response: {words}")
                return
        super().send(self._answer(outputs), final=final)

    def _answer(self, outputs: Any) -> dict[str, Any]:
        ids = outputs["output_ids"].reshape(-1).tolist()
        hidden = len(ids) > 0 and ids[-1] == self._end_id
        ids = ids[:-1] if hidden else ids
        answer = {
            "output_ids": np.array(ids, np.int32).reshape(1, 1, -1),
            "sequence_length": np.array([[len(ids)]], np.int32),
        }
        if "output_log_probs" in outputs:
            new = outputs["output_log_probs"].reshape(-1).tolist()
            self._log_probs += new[:-1] if hidden else new
            answer["output_log_probs"] = np.array(self._log_probs, np.float32).reshape(1, 1, -1)
            answer["cum_log_probs"] = np.array([[sum(self._log_probs)]], np.float32)
        if self._told_performance:
            if self._cached is None:
                at_once = outputs.get("cached_tokens")
                self._cached = self._cached_tokens(self._id) if at_once is None else int(at_once[0, 0])
            answer["kv_cache_reused_blocks"] = np.array([[self._cached // self._block_size]], np.int32)
        return answer

    def fail(self, message: str) -> None:
        refused = message.startswith(REFUSAL)
        where = "when fetching new request" if refused else "in forwardAsync function"
        super().fail(
            "Executor failed process requestId 1 due to the following error: "
            f"Encountered an error {where}: {message.removeprefix(REFUSAL)}"
        )


class TritonPythonModel(scripted_model.TritonPythonModel):
    def initialize(self, args: dict[str, str]) -> None:
        parameters = Parameters.from_model_config(args["model_config"])
        self._block_size = parameters.integer("block_size")
        self._max_seq_len = parameters.integer("max_seq_len")
        super().initialize(args)

    def execute(self, requests: list[Any]) -> None:
        self._front.execute(
            (_Reader(request, self._max_seq_len), CumulativeSender(request, self._block_size, self._cached_tokens))
            for request in requests
        )

    def _cached_tokens(self, request_id: str) -> int:
        """Of a live request; the scripted model tells it at the end only. Runs on the simulator's thread, as ``send`` does."""
        streams = self._simulator._streams.items()
        return next((stream.cached_tokens for live, stream in streams if live.request_id == request_id), 0)


class _Reader(TritonReader):
    """Inputs that the configuration reshapes to scalars have their element as an array again; no more tokens than there is room."""

    def __init__(self, request: Any, max_seq_len: int) -> None:
        super().__init__(request)
        self._max_seq_len = max_seq_len

    def tensor(self, name: str) -> Any:
        array = super().tensor(name)
        if array is None or array.size != 1 or array.ndim > 1:
            return array
        element = array.reshape(1, 1)
        return self._clamped(element) if name == "request_output_len" else element

    def _clamped(self, limit: Any) -> Any:
        prompt = super().tensor("input_ids")
        room = 0 if prompt is None else self._max_seq_len - prompt.size
        return np.minimum(limit, room, dtype=limit.dtype) if room > 0 else limit


def _scalar(reader: TritonReader, name: str) -> Any:
    """The input's one element, or None."""
    array = reader.tensor(name)
    return None if array is None else array.reshape(-1)[0].item()
