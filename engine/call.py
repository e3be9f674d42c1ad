"""One inference call to Triton: a ``ModelStreamInfer`` stream that carries one request and its responses.

Decoupled models answer on streams only. With a stream per request an error belongs to one request, and cancelling the call
is what the model sees at once; on a shared stream it could only be asked to stop. The calls of a client share one HTTP/2
connection all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2_grpc

from engine.channel import messages
from engine.contract import WireTensor
from engine.deadline import Deadline
from engine.errors import EngineError, EngineFailed, EngineProtocolError, EngineTimeout, EngineUnavailable
from engine.failures import from_message, from_rpc


def infer_request(
    model: str, request_id: str, inputs: Iterable[WireTensor], outputs: Sequence[str]
) -> messages.ModelInferRequest:
    """The protobuf message; ``outputs`` are the names of the wanted ones."""
    request = messages.ModelInferRequest(model_name=model, id=request_id)
    for tensor in inputs:
        request.inputs.add(name=tensor.name, datatype=tensor.dtype, shape=tensor.shape)
        request.raw_input_contents.append(tensor.data)
    for name in outputs:
        request.outputs.add(name=name)
    return request


class InferCall:
    """A running call. ``sampled`` becomes true with its first response, and decides what a failure means."""

    def __init__(self, call: Any, address: str, request_id: str) -> None:
        self._call = call
        self._address = address
        self._request_id = request_id
        self._deadline = Deadline(call.cancel)
        self.sampled = False

    async def send(self, message: messages.ModelInferRequest, timeout_s: float) -> None:
        """Send the only request and say that it is the only one. Raises: EngineError."""
        try:
            with self._deadline.of(timeout_s):
                await self._call.write(message)
                await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            failure = self._failure(error, "Triton did not take the request", timeout_s)
            if failure is None:
                raise
            raise failure from error

    async def read(self, timeout_s: float) -> messages.ModelInferResponse | None:
        """The next response; ``None`` when the server has closed the stream. Raises: EngineError."""
        try:
            with self._deadline.of(timeout_s):
                message = await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            failure = self._failure(error, "no further token" if self.sampled else "no token", timeout_s)
            if failure is None:
                raise
            raise failure from error
        if message is grpc.aio.EOF:
            return None
        if message.error_message:
            raise from_message(message.error_message, sampled=self.sampled)
        response = message.infer_response
        if response.id != self._request_id:
            raise EngineProtocolError(f"the response to {self._request_id!r} names the request {response.id!r}")
        self.sampled = True
        return response

    def cancel(self) -> None:
        """End the call, unless it has ended."""
        self._deadline.close()
        self._call.cancel()

    def _failure(self, error: BaseException, too_late: str, timeout_s: float) -> EngineError | None:
        """The meaning of an error of the call, which is dead after it; ``None`` if it is our own task's cancellation."""
        if isinstance(error, grpc.aio.AioRpcError):
            return from_rpc(error, self._address, sampled=self.sampled)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return None
        # grpc.aio raises CancelledError in whoever waits for a call that is cancelled on this side.
        if self._deadline.passed:
            return EngineTimeout(f"{too_late} within {timeout_s:g} s")
        kind = EngineFailed if self.sampled else EngineUnavailable
        return kind(f"the connection to Triton at {self._address} was closed on our side")


@asynccontextmanager
async def open_call(
    stub: service_pb2_grpc.GRPCInferenceServiceStub, address: str, request_id: str
) -> AsyncIterator[InferCall]:
    """A call that is cancelled when the block is left, unless it has ended by then."""
    call = InferCall(stub.ModelStreamInfer(), address, request_id)
    try:
        yield call
    finally:
        call.cancel()


def outputs_of(response: messages.ModelInferResponse) -> dict[str, WireTensor]:
    """The response's tensors by name. Raises: EngineProtocolError, if they do not come as raw bytes, one for each."""
    if len(response.outputs) != len(response.raw_output_contents):
        found = f"{len(response.outputs)} outputs and {len(response.raw_output_contents)} raw contents"
        raise EngineProtocolError(f"one response holds {found}")
    return {
        (name := output.name): WireTensor(name, output.datatype, (), data)
        for output, data in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def is_final(response: messages.ModelInferResponse) -> bool:
    return bool(response.parameters["triton_final_response"].bool_param)
