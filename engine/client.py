"""One Triton endpoint as an ``Engine``: generations and control requests, with deadlines, every answer checked.

A chunk is handed on after it was checked, by itself and against what came before it (``reading``). An answer that contradicts the
contract ends the generation with an error: nobody can say what was sampled.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import grpc.aio

from engine.call import InferCall, infer_request, open_call
from engine.channel import messages
from engine.connection import Connection
from engine.contract import (
    CONTROL_OUTPUTS,
    decode_control_reply,
    encode_control,
    encode_stop,
)
from engine.cumulative import STOP_OUTPUTS
from engine.errors import EngineError, EngineFailed, EngineProtocolError, EngineRejected, EngineUnavailable
from engine.failures import from_rpc
from engine.reading import inputs_and_outputs, reader_of
from engine.reloading import Reloading, weights_document
from engine.response import Response
from engine.types import Dialect, EngineInfo, GenerateRequest, TokenChunk
from engine.weights import Weights

_END_OF_STREAM_TIMEOUT_S = 5.0
"""For the server to close a stream after its final response; a reply that is whole is not lost by it."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Deadlines, in seconds."""

    connect_timeout_s: float = 5.0
    """Until there is a connection. A request on a broken one waits this long for a new one."""
    first_token_timeout_s: float = 600.0
    """From the request to its first response: queueing and prefill."""
    inactivity_timeout_s: float = 120.0
    """Between two responses of a generation."""
    control_timeout_s: float = 10.0
    """For the answer to a control request, a health check among them."""
    update_timeout_s: float = 600.0
    """For new weights to be read and put in place."""

    def of_control(self, operation: str) -> float:
        """For the answer to this operation."""
        return self.update_timeout_s if operation == "update_weights" else self.control_timeout_s


class TritonClient:
    """An ``engine.types.Engine`` over the server at ``address`` (``host:port``). It belongs to the running event loop."""

    def __init__(self, address: str, info: EngineInfo, options: ClientOptions | None = None) -> None:
        self.address = address
        self._info = info
        self._options = options or ClientOptions()
        self._connection = Connection(address)
        self._stub = self._connection.stub
        self._calls: dict[str, InferCall | None] = {}
        """Of the generations that run, by request id; None before the call is open."""

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def losses(self) -> int:
        """How often the connection was lost: behind a new one there may be another server."""
        return self._connection.losses

    def on_loss(self, tell: Callable[[], None]) -> None:
        """Have ``tell`` called whenever the connection is lost."""
        self._connection.on_loss = tell

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel what is in flight and close the connection."""
        await self._connection.close()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Chunks until the one with ``finished``. Closing the iterator (``contextlib.aclosing``) cancels the generation.

        Raises: EngineError, see ``engine.errors``.
        """
        if request.guide is not None and request.guide.kind not in self._info.guides:
            raise EngineRejected(f"the model {self._info.model} has no guided decoding by {request.guide.kind}")
        if request.lora and request.lora not in self._info.loras:
            raise EngineRejected(f"the model {self._info.model} has no LoRA adapter {request.lora!r}")
        inputs, outputs = inputs_and_outputs(request, self._info)
        message = infer_request(self._info.model, request.request_id, inputs, outputs)
        message.parameters["session"].string_param = request.session
        message.parameters["turn"].int64_param = request.turn
        if request.continued:
            message.parameters["continued"].int64_param = request.continued
        self._calls[request.request_id] = None
        try:
            await self.connect()
            async with open_call(self._connection, self.address, request.request_id) as call:
                if request.request_id not in self._calls:
                    raise EngineUnavailable("the generation was aborted before it was sent")
                self._calls[request.request_id] = call
                await call.send(message, self._options.first_token_timeout_s)
                reader = reader_of(request, self._info)
                while not reader.finished:
                    response = await self._next_response(call)
                    chunk = reader.accept(response.outputs, final=response.final)
                    if chunk.finished is not None:
                        await _expect_end(call)
                    if len(chunk.ids) or chunk.finished is not None:
                        yield chunk
        finally:
            self._calls.pop(request.request_id, None)

    async def control(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Perform one control operation of the contract, ``control("stats")`` for one, and return its answer.

        Raises: EngineError.
        """
        if self._info.dialect is Dialect.CUMULATIVE:
            return await self._control_by_triton(operation, arguments)
        request_id = f"control-{secrets.token_hex(8)}"
        inputs = encode_control({"op": operation, **arguments})
        message = infer_request(self._info.model, request_id, inputs, CONTROL_OUTPUTS)
        timeout_s = self._options.of_control(operation)
        await self.connect()
        async with open_call(self._connection, self.address, request_id) as call:
            await call.send(message, timeout_s)
            response = await call.read(timeout_s)
            if response is None:
                raise EngineFailed("the model did not answer the control request")
            return decode_control_reply(response.outputs)

    async def _control_by_triton(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """What can be said of a model without control requests, and done to it by loading it again. Raises: EngineError."""
        if operation not in ("stats", "update_weights"):
            raise EngineRejected(f"{operation}: the model {self._info.model} takes no control requests")
        await self.connect()
        reloading = Reloading(self._stub, self.address, self._info.model, self._options.of_control(operation))
        if operation == "update_weights":
            await reloading.update(Weights(**arguments))
            answer = weights_document(await reloading.weights())
        else:
            await self._check_loaded()
            answer = await reloading.stats()
        # Its responses do not say which weights sampled them: what the configuration says is what they are recorded with.
        self._info = replace(self._info, weight_version=answer["weight_version"])
        return {"op": operation, **answer}

    async def _check_loaded(self) -> None:
        question = messages.ModelReadyRequest(name=self._info.model)
        try:
            answer = await self._stub.ModelReady(question, timeout=self._options.control_timeout_s)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, self.address, sampled=False) from error
        if not answer.ready:
            raise EngineUnavailable(f"Triton at {self.address} says that the model {self._info.model} is not ready")

    async def stop(self, request_id: str) -> None:
        """End a generation in good order: its iterator gives what was sampled, and then an end that says ``cancelled``.

        Nothing happens if it has ended. Raises: EngineError.
        """
        outputs = STOP_OUTPUTS if self._info.dialect is Dialect.CUMULATIVE else CONTROL_OUTPUTS
        message = infer_request(self._info.model, request_id, encode_stop(), outputs)
        timeout_s = self._options.control_timeout_s
        await self.connect()
        async with open_call(self._connection, self.address, request_id) as call:
            await call.send(message, timeout_s)
            await call.read(timeout_s)

    def abort(self, request_id: str) -> None:
        """Cut a generation off at once: its iterator raises EngineFailed, or EngineUnavailable if no token has come."""
        call = self._calls.pop(request_id, None)
        if call is not None:
            call.cancel()

    async def check_ready(self) -> None:
        """Triton's own readiness stays true when the model's process has died, so it is the model that is asked.

        Raises: EngineUnavailable, with the reason, if a generation cannot be expected to work now.
        """
        try:
            await self.control("stats")
        except EngineUnavailable:
            raise
        except EngineError as error:
            raise EngineUnavailable(str(error)) from error

    async def connect(self) -> None:
        """Raises: EngineUnavailable, if there is no connection and none can be made in time."""
        await self._connection.ready(self._options.connect_timeout_s)

    async def _next_response(self, call: InferCall) -> Response:
        options = self._options
        response = await call.read(options.inactivity_timeout_s if call.sampled else options.first_token_timeout_s)
        if response is None:
            raise EngineFailed("the stream ended without its final response")
        return response


async def _expect_end(call: InferCall) -> None:
    """The stream must hold nothing after the final response. A failure to close it is no failure of the reply."""
    try:
        response = await call.read(_END_OF_STREAM_TIMEOUT_S)
    except EngineProtocolError:
        raise
    except EngineError:
        return
    if response is not None:
        raise EngineProtocolError("a response came after the final one")
