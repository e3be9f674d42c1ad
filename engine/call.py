"""One inference call to Triton: a ``ModelStreamInfer`` stream that carries one request and its responses.

Decoupled models answer on streams only. With a stream per request an error belongs to one request, and cancelling the call
is what the model sees at once; on a shared stream it could only be asked to stop. The calls of a client share one HTTP/2
connection all the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from engine.channel import messages
from engine.connection import Connection
from engine.contract import WireTensor
from engine.deadline import Deadline
from engine.errors import EngineError, EngineFailed, EngineTimeout, EngineUnavailable
from engine.failures import from_rpc
from engine.grpc_call import GrpcCall
from engine.grpc_wire import CallFailed
from engine.response import Response, Responses


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

    def __init__(self, call: GrpcCall, address: str, request_id: str) -> None:
        self._call = call
        self._address = address
        self._responses = Responses(request_id)
        self._deadline = Deadline(self._give_up)
        self._cancelled = False
        self.sampled = False

    async def send(self, message: messages.ModelInferRequest, timeout_s: float) -> None:
        """Send the only request and say that it is the only one. Raises: EngineError."""
        with self._deadline.of(timeout_s):
            await self._call.write(message.SerializeToString(), last=True)
        if self._deadline.passed:
            raise EngineTimeout(f"Triton did not take the request within {timeout_s:g} s")

    async def read(self, timeout_s: float) -> Response | None:
        """The next response; ``None`` when the server has closed the stream. Raises: EngineError."""
        try:
            with self._deadline.of(timeout_s):
                data = await self._call.read()
        except CallFailed as error:
            raise self._failure(error, timeout_s) from error
        if data is None:
            return None
        response = self._responses.read(data, sampled=self.sampled)
        self.sampled = True
        return response

    def cancel(self) -> None:
        """End the call, unless it has ended."""
        self._cancelled = True
        self._deadline.close()
        self._call.cancel()

    def _give_up(self) -> None:
        self._call.cancel()

    def _failure(self, error: CallFailed, timeout_s: float) -> EngineError:
        """The meaning of an error of the call, which is dead after it."""
        if self._deadline.passed:
            return EngineTimeout(f"{'no further token' if self.sampled else 'no token'} within {timeout_s:g} s")
        if self._cancelled:
            kind = EngineFailed if self.sampled else EngineUnavailable
            return kind(f"the connection to Triton at {self._address} was closed on our side")
        return from_rpc(error, self._address, sampled=self.sampled)


@asynccontextmanager
async def open_call(connection: Connection, address: str, request_id: str) -> AsyncIterator[InferCall]:
    """A call that is cancelled when the block is left, unless it has ended by then."""
    call = InferCall(await connection.stream_infer(), address, request_id)
    try:
        yield call
    finally:
        call.cancel()
