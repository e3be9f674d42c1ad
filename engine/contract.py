"""The wire contract between the client and every model in ``model_repo``: one table, and two pure functions over it.

Tensor names, dtypes and shapes are those of TensorRT-LLM's own Triton model (``tensorrt_llm`` in
``triton_backend/all_models/inflight_batcher_llm``), so that its clients can talk to our models. Our Python models add
``finish_reason``, ``cached_tokens``, ``weight_version`` and ``control_reply`` to the outputs and ``control`` to the
inputs. Every tensor has a leading batch dimension of 1 on the wire. ``repository`` renders this table as
``config.pbtxt`` and, for the models themselves, as ``contract.json``.

Semantics of our models:

- One response per message; ids and log probs in it are *new* ones (``log_probs_streaming: delta``). Without
  ``streaming`` there is one response. The response flagged final carries ``finish_reason`` and ``cached_tokens``;
  ``weight_version`` is in each.
- An end token (``end_id``) and the words of ``stop_words_list`` stay in the output with their log probs. ``min_tokens``
  holds both back. Neither given: only the token limit ends the reply.
- ``request_output_len`` is the number of new tokens asked for. Prompt plus that beyond ``max_seq_len`` is an error,
  never clamped.
- ``exclude_input_in_output`` defaults to true; false puts the prompt's ids before the first response's ids (no log
  probs for them).
- ``guided_decoding_guide_type`` is a name of ``GuideKind``, ``guided_decoding_guide`` the grammar that the output follows:
  its mask comes after penalties and before temperature and truncation. The model's parameter ``guided_decoding`` lists the
  kinds that it offers, or is ``none``; other kinds and grammars that do not compile are refused, by the tensor's name.
  Where the grammar is complete an end token may come; where nothing else may follow, the reply ends, with ``stop``.
- ``lora`` is the name of a LoRA adapter that the model's parameter ``loras`` lists (``NAME=FOLDER``, with commas between them);
  another name is refused. Nothing that was computed with one adapter is used with another.
- ``stop: true`` cancels the live request of the same id and is itself answered by an empty final response.
- ``control`` is a JSON object: ``{"op": "stats"}``, ``{"op": "flush"}`` (forget the KV cache) or ``{"op":
  "update_weights", "version": N, "path": CHECKPOINT}``: later tokens come from these weights alone, and nothing of the
  KV cache is left. It is refused while requests are live; where it fails, the old weights go on; the same ones again
  are no error. The answer is one final response with ``control_reply`` (BYTES [1, 1]) alone, a JSON object that has
  ``op`` and ``weight_version``; that of ``stats`` also ``vocab_size``, ``max_seq_len``, ``log_prob_mode``, ``guided_decoding`` and
  ``loras`` (lists of names, in order), ``instance`` (another text after each start of the model) and ``live``, the number of
  requests that have not ended. As in a ``stop`` request the required inputs are there but not looked at.
- Request parameters ``session`` (string), ``turn`` (int) and ``continued`` (int: tokens at the end of the prompt that were sampled
  for the same reply) go to the engine log.
- An error message that starts with ``INVALID_REQUEST_PREFIX`` means that the model refused the request and sampled
  nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineProtocolError, EngineRejected
from engine.types import Finished, FinishReason, GenerateRequest, Ids, LogProbs, TokenChunk

MODEL_NAME = "tensorrt_llm"
INVALID_REQUEST_PREFIX = "invalid request: "


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of the contract. ``dims`` are without the batch dimension; -1 is any length."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    optional: bool = True


INPUTS: tuple[TensorSpec, ...] = (
    TensorSpec("input_ids", "INT32", (-1,), optional=False),
    TensorSpec("input_lengths", "INT32", (1,), optional=False),
    TensorSpec("request_output_len", "INT32", (1,), optional=False),
    TensorSpec("end_id", "INT32", (1,)),
    TensorSpec("pad_id", "INT32", (1,)),
    TensorSpec("stop_words_list", "INT32", (2, -1)),
    TensorSpec("temperature", "FP32", (1,)),
    TensorSpec("runtime_top_k", "INT32", (1,)),
    TensorSpec("runtime_top_p", "FP32", (1,)),
    TensorSpec("repetition_penalty", "FP32", (1,)),
    TensorSpec("presence_penalty", "FP32", (1,)),
    TensorSpec("frequency_penalty", "FP32", (1,)),
    TensorSpec("seed", "UINT64", (1,)),
    TensorSpec("min_tokens", "INT32", (1,)),
    TensorSpec("return_log_probs", "BOOL", (1,)),
    TensorSpec("streaming", "BOOL", (1,)),
    TensorSpec("stop", "BOOL", (1,)),
    TensorSpec("exclude_input_in_output", "BOOL", (1,)),
    TensorSpec("guided_decoding_guide_type", "BYTES", (1,)),
    TensorSpec("guided_decoding_guide", "BYTES", (1,)),
    TensorSpec("lora", "BYTES", (1,)),
    TensorSpec("control", "BYTES", (1,)),
)

OUTPUTS: tuple[TensorSpec, ...] = (
    TensorSpec("output_ids", "INT32", (-1, -1)),
    TensorSpec("sequence_length", "INT32", (-1,)),
    TensorSpec("output_log_probs", "FP32", (-1, -1)),
    TensorSpec("cum_log_probs", "FP32", (-1,)),
    TensorSpec("finish_reason", "BYTES", (1,)),
    TensorSpec("cached_tokens", "INT32", (1,)),
    TensorSpec("weight_version", "INT32", (1,)),
    TensorSpec("control_reply", "BYTES", (1,)),
)

GENERATE_OUTPUTS = (
    "output_ids",
    "sequence_length",
    "output_log_probs",
    "finish_reason",
    "cached_tokens",
    "weight_version",
)
"""What the client asks for. Fewer outputs are smaller messages; ``cum_log_probs`` can be had by summing."""

CONTROL_OUTPUTS = ("control_reply",)


class WireTensor(NamedTuple):
    """A tensor as it travels: ``data`` is little-endian and raw (for BYTES: u32 length before each element).

    Of an output ``shape`` is left empty: nothing here goes by it, and to read six of them costs more than all else of a message.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def contract_document() -> dict[str, Any]:
    """The table as plain JSON data, for ``contract.json`` beside each model."""
    return {
        "model_name": MODEL_NAME,
        "invalid_request_prefix": INVALID_REQUEST_PREFIX,
        "inputs": [_spec_document(spec) for spec in INPUTS],
        "outputs": [_spec_document(spec) for spec in OUTPUTS],
    }


def encode_request(request: GenerateRequest) -> list[WireTensor]:
    """The input tensors of one streamed generation.

    All end tokens travel as one-token stop words, in every case: the C++ model returns neither an ``end_id`` token nor
    its log prob, and has room for one only.

    Raises: EngineRejected, if a value does not fit its tensor's dtype.
    """
    sampling = request.sampling
    prompt = np.ascontiguousarray(request.prompt_ids)
    if prompt.dtype != np.int32 or request.prompt_ids.ndim != 1:
        raise TypeError(
            f"prompt_ids must be a one-dimensional int32 array, not {prompt.dtype} {request.prompt_ids.shape}"
        )
    tensors = [
        WireTensor("input_ids", "INT32", (1, prompt.size), prompt.tobytes()),
        encode_scalar("input_lengths", "INT32", prompt.size),
        encode_scalar("request_output_len", "INT32", request.max_tokens),
        encode_scalar("temperature", "FP32", sampling.temperature),
        encode_scalar("runtime_top_k", "INT32", sampling.top_k),
        encode_scalar("runtime_top_p", "FP32", sampling.top_p),
        encode_scalar("repetition_penalty", "FP32", sampling.repetition_penalty),
        encode_scalar("presence_penalty", "FP32", sampling.presence_penalty),
        encode_scalar("frequency_penalty", "FP32", sampling.frequency_penalty),
        encode_scalar("seed", "UINT64", sampling.seed),
        encode_scalar("min_tokens", "INT32", sampling.min_tokens),
        encode_scalar("return_log_probs", "BOOL", True),
        encode_scalar("streaming", "BOOL", True),
        encode_scalar("exclude_input_in_output", "BOOL", True),
    ]
    words = [(end_id,) for end_id in request.end_ids] + [word for word in request.stop_words if word]
    if words:
        tensors.append(encode_word_list("stop_words_list", words))
    if request.guide is not None:
        tensors.append(_string("guided_decoding_guide_type", request.guide.kind))
        tensors.append(_string("guided_decoding_guide", request.guide.text))
    if request.lora:
        tensors.append(_string("lora", request.lora))
    return tensors


def encode_control(document: Mapping[str, Any]) -> list[WireTensor]:
    """The input tensors of one control request; the required inputs are there but not looked at."""
    return [
        WireTensor("input_ids", "INT32", (1, 1), bytes(4)),
        encode_scalar("input_lengths", "INT32", 1),
        encode_scalar("request_output_len", "INT32", 1),
        _string("control", json.dumps(document)),
    ]


def encode_stop() -> list[WireTensor]:
    """The input tensors of the request that cancels the live generation of the same id."""
    return [
        WireTensor("input_ids", "INT32", (1, 1), bytes(4)),
        encode_scalar("input_lengths", "INT32", 1),
        encode_scalar("request_output_len", "INT32", 1),
        encode_scalar("stop", "BOOL", True),
    ]


def decode_control_reply(outputs: Mapping[str, WireTensor]) -> dict[str, Any]:
    """Raises: EngineProtocolError, if the reply is missing or is not a JSON object."""
    try:
        reply = json.loads(_text(outputs, "control_reply"))
    except ValueError as error:
        raise EngineProtocolError(f"the output control_reply is not JSON: {error}") from error
    if not isinstance(reply, dict):
        raise EngineProtocolError("the output control_reply is not a JSON object")
    return reply


def encode_word_list(name: str, words: Sequence[Sequence[int]]) -> WireTensor:
    """TensorRT-LLM's word list, INT32 [1, 2, N]: all ids joined, above the inclusive prefix sums of the words' lengths.

    The sums are padded with -1: ``[[5, 7, 3], [9, 2]]`` is ``[[5, 7, 3, 9, 2], [3, 5, -1, -1, -1]]``
    (``convertWordList``, TensorRT-LLM ``utils.cc``).
    """
    ids = [token for word in words for token in word]
    rows = np.full((1, 2, len(ids)), -1, dtype="<i4")
    rows[0, 0] = _checked(name, "INT32", ids)
    rows[0, 1, : len(words)] = np.cumsum([len(word) for word in words])
    return WireTensor(name, "INT32", rows.shape, rows.tobytes())


def decode_chunk(outputs: Mapping[str, WireTensor], *, final: bool, vocab_size: int) -> TokenChunk:
    """One response as a chunk.

    Raises: EngineProtocolError, if an output is missing or malformed, counts differ, an id is outside the vocabulary,
    or a log prob is not finite or above 0.
    """
    count = int_of(outputs, "sequence_length")
    ids = ints_of(outputs, "output_ids")
    log_probs = floats_of(outputs, "output_log_probs")
    if not len(ids) == len(log_probs) == count:
        found = f"{len(ids)} ids, {len(log_probs)} log probs and a sequence_length of {count}"
        raise EngineProtocolError(f"one response holds {found}")
    if count:
        check_tokens(ids, log_probs, vocab_size)
    return TokenChunk(ids, log_probs, int_of(outputs, "weight_version"), _finished(outputs) if final else None)


def check_tokens(ids: Ids, log_probs: LogProbs, vocab_size: int) -> None:
    """This runs for every message, whose few tokens are dearer to look at as arrays than as lists.

    The sum of floats is finite if all of them are: float32's add up to far less than a double holds, and NaN compares false.
    Raises: EngineProtocolError.
    """
    numbers: list[int] = ids.tolist()
    if min(numbers) < 0 or max(numbers) >= vocab_size:
        raise EngineProtocolError(f"an output id lies outside the vocabulary of {vocab_size} tokens")
    logs: list[float] = log_probs.tolist()
    if not (sum(logs) > -math.inf and max(logs) <= 0):
        raise EngineProtocolError("a log prob is not finite or is above 0")


def _finished(outputs: Mapping[str, WireTensor]) -> Finished:
    raw = _text(outputs, "finish_reason")
    try:
        reason = FinishReason(raw)
    except ValueError as error:
        raise EngineProtocolError(f"unknown finish_reason {raw!r}") from error
    return Finished(reason, cached_tokens=int_of(outputs, "cached_tokens"))


def _text(outputs: Mapping[str, WireTensor], name: str) -> str:
    data = _tensor(outputs, name, "BYTES").data
    if len(data) < 4 or int.from_bytes(data[:4], "little") != len(data) - 4:
        raise EngineProtocolError(f"the output {name} is not one string")
    return data[4:].decode(errors="replace")


def _tensor(outputs: Mapping[str, WireTensor], name: str, dtype: str) -> WireTensor:
    tensor = outputs.get(name)
    if tensor is None:
        raise EngineProtocolError(f"the response lacks the output {name}")
    if tensor.dtype != dtype:
        raise EngineProtocolError(f"the output {name} is {tensor.dtype}, not {dtype}")
    return tensor


def _array(outputs: Mapping[str, WireTensor], name: str, dtype: str) -> NDArray[Any]:
    """The tensor's elements in one row, without a copy, read-only."""
    data = _tensor(outputs, name, dtype).data
    element = _NUMPY_DTYPES[dtype]
    if len(data) % element.itemsize:
        raise EngineProtocolError(f"the output {name} has {len(data)} bytes, which is no number of {dtype} elements")
    return np.frombuffer(data, dtype=element)


def ints_of(outputs: Mapping[str, WireTensor], name: str) -> Ids:
    """An INT32 output in one row, without a copy, read-only. Raises: EngineProtocolError."""
    return _array(outputs, name, "INT32")


def floats_of(outputs: Mapping[str, WireTensor], name: str) -> LogProbs:
    """An FP32 output in one row, without a copy, read-only. Raises: EngineProtocolError."""
    return _array(outputs, name, "FP32")


def int_of(outputs: Mapping[str, WireTensor], name: str) -> int:
    """An INT32 output of one element. Raises: EngineProtocolError."""
    data = _tensor(outputs, name, "INT32").data
    if len(data) != 4:
        raise EngineProtocolError(f"the output {name} has {len(data)} bytes, not one INT32")
    return int.from_bytes(data, "little", signed=True)


def encode_scalar(name: str, dtype: str, value: float) -> WireTensor:
    """Raises: EngineRejected, if the value does not fit the dtype."""
    return WireTensor(name, dtype, (1, 1), _checked(name, dtype, [value]).tobytes())


def _string(name: str, text: str) -> WireTensor:
    data = text.encode()
    return WireTensor(name, "BYTES", (1, 1), len(data).to_bytes(4, "little") + data)


def _checked(name: str, dtype: str, values: Sequence[float]) -> NDArray[Any]:
    """``values`` as an array. Refused where the dtype has no such number: numpy would wrap it, or make it infinite."""
    low, high = _LIMITS[dtype]
    if any(not low <= value <= high for value in values):
        raise EngineRejected(f"{name} has a value that is not a finite {dtype}")
    return np.array(values, dtype=_NUMPY_DTYPES[dtype])


def _spec_document(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype, "dims": list(spec.dims), "optional": spec.optional}


_NUMPY_DTYPES: Mapping[str, np.dtype[Any]] = {
    "INT32": np.dtype("<i4"),
    "FP32": np.dtype("<f4"),
    "UINT64": np.dtype("<u8"),
    "BOOL": np.dtype("?"),
}
_LIMITS: Mapping[str, tuple[float, float]] = {
    "INT32": (-(2**31), 2**31 - 1),
    "FP32": (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)),
    "UINT64": (0, 2**64 - 1),
    "BOOL": (False, True),
}
