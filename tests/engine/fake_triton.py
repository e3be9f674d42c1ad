"""A gRPC server in this process that answers by a script: for answers that a real Triton cannot be made to give."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2_grpc

from engine import cumulative
from engine.channel import messages
from engine.contract import INPUTS, OUTPUTS
from engine.types import Dialect

Script = Callable[[Any, Any], AsyncIterator[Any]]
"""(request message, call context) -> the responses of one call."""


@dataclass
class Described:
    """What the server says about its model; right as it stands. Tensors are by name, in Triton's dtypes."""

    inputs: dict[str, str] = field(default_factory=lambda: {spec.name: spec.dtype for spec in INPUTS})
    outputs: dict[str, str] = field(default_factory=lambda: {spec.name: spec.dtype for spec in OUTPUTS})
    backend: str = "python"
    decoupled: bool = True
    parameters: dict[str, str] = field(
        default_factory=lambda: {
            "log_probs_streaming": "delta",
            "log_prob_mode": "processed",
            "max_seq_len": "4096",
            "vocab_size": "1000",
        }
    )


def described_as(dialect: Dialect) -> Described:
    """What a sound server of this dialect says."""
    described = Described()
    if dialect is Dialect.CUMULATIVE:
        described.outputs = {name: dtype for name, dtype in described.outputs.items() if name in cumulative.OUTPUTS}
        described.parameters |= {"log_probs_streaming": str(dialect), "normalize_log_probs": "false"}
        described.parameters |= {"tokens_per_block": "4", "gpt_model_path": "none"}
    return described


class _Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):
    def __init__(self, script: Script, described: Described) -> None:
        self._script = script
        self._described = described

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return messages.ServerMetadataResponse(name="fake", version="0.0")

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        return messages.ModelMetadataResponse(
            name=request.name, inputs=_tensors(self._described.inputs), outputs=_tensors(self._described.outputs)
        )

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        config = messages.ModelConfigResponse().config
        config.backend = self._described.backend
        config.model_transaction_policy.decoupled = self._described.decoupled
        for name, value in self._described.parameters.items():
            config.parameters[name].string_value = value
        return messages.ModelConfigResponse(config=config)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        return messages.ModelReadyResponse(ready=True)

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            async for response in self._script(request, context):
                yield response


@asynccontextmanager
async def fake_triton(script: Script, described: Described | None = None, port: int = 0) -> AsyncIterator[str]:
    """The address of a server that runs ``script`` for each request; what it does when the block is left breaks off."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)])
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Servicer(script, described or Described()), server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(grace=None)


def _tensors(dtypes: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "datatype": dtype, "shape": [-1]} for name, dtype in dtypes.items()]


def answer(request: Any, ids: list[int], *, final: bool = False, log_prob: float = -0.5) -> Any:
    """A proper response with the ids, each with the same log prob."""
    reason = b"length"
    ours = [
        ("weight_version", "INT32", (1, 1), bytes(4)),
        ("cached_tokens", "INT32", (1, 1), bytes(4)),
        ("finish_reason", "BYTES", (1, 1), len(reason).to_bytes(4, "little") + reason),
    ]
    return _response(request, [*_tokens(ids, [log_prob] * len(ids)), *ours], final)


@dataclass
class Speaker:
    """``answer`` in either dialect: in that of TensorRT-LLM's C++ model a response has the log probs of those before it, too."""

    dialect: Dialect
    _said: Counter[str] = field(default_factory=Counter)
    """Tokens, by request."""

    def __call__(self, request: Any, ids: list[int], *, final: bool = False) -> Any:
        if self.dialect is Dialect.DELTA:
            return answer(request, ids, final=final)
        self._said[request.id] += len(ids)
        blocks = ("kv_cache_reused_blocks", "INT32", (1, 1), bytes(4))
        return _response(request, [*_tokens(ids, [-0.5] * self._said[request.id]), blocks], final)


def _tokens(ids: list[int], log_probs: list[float]) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    count = len(ids)
    return [
        ("output_ids", "INT32", (1, 1, count), np.array(ids, "<i4").tobytes()),
        ("sequence_length", "INT32", (1, 1), np.array([count], "<i4").tobytes()),
        ("output_log_probs", "FP32", (1, 1, len(log_probs)), np.array(log_probs, "<f4").tobytes()),
    ]


def _response(request: Any, tensors: list[tuple[str, str, tuple[int, ...], bytes]], final: bool) -> Any:
    response = messages.ModelInferResponse(model_name=request.model_name, id=request.id)
    response.parameters["triton_final_response"].bool_param = final
    for name, dtype, shape, data in tensors:
        response.outputs.add(name=name, datatype=dtype, shape=shape)
        response.raw_output_contents.append(data)
    return messages.ModelStreamInferResponse(infer_response=response)


def failure(message: str) -> Any:
    """An error as Triton puts it into a stream."""
    return messages.ModelStreamInferResponse(error_message=message)


def is_control(request: Any) -> bool:
    return "control" in [tensor.name for tensor in request.inputs]


def control_answer(request: Any, document: dict[str, Any]) -> Any:
    """The answer to a control request."""
    response = messages.ModelInferResponse(model_name=request.model_name, id=request.id)
    response.parameters["triton_final_response"].bool_param = True
    data = json.dumps(document).encode()
    response.outputs.add(name="control_reply", datatype="BYTES", shape=(1, 1))
    response.raw_output_contents.append(len(data).to_bytes(4, "little") + data)
    return messages.ModelStreamInferResponse(infer_response=response)


def ids_asked(request: Any, name: str = "input_ids") -> list[int]:
    """An INT32 input of a request."""
    return [int(value) for value in np.frombuffer(input_of(request, name), "<i4")]


def input_of(request: Any, name: str) -> bytes:
    """An input of a request, as it came."""
    names = [tensor.name for tensor in request.inputs]
    contents: bytes = request.raw_input_contents[names.index(name)]
    return contents


def serving_all(generate: Script | None = None, answer: Callable[..., Any] = answer) -> Script:
    """A script that answers control requests and, by ``answer``, the probe's trial, and leaves the rest to ``generate``."""

    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        if is_control(request):
            yield control_answer(request, {"op": "stats", "weight_version": 0})
        elif generate is None or request.parameters["session"].string_param == "rollserve-probe":
            (count,) = ids_asked(request, "request_output_len")
            yield answer(request, list(range(count)), final=True)
        else:
            async for response in generate(request, context):
                yield response

    return script
