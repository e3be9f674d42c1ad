"""Which EngineError a failure of a generation is: from Triton's error messages, and from gRPC's status codes.

Triton puts a failed request's message into the stream and keeps the stream open; the message is text without a code, so it
is told by its words. Once tokens have arrived every failure is EngineFailed: what was sampled is known and cut off.
"""

from __future__ import annotations

import grpc
import grpc.aio

from engine.contract import INVALID_REQUEST_PREFIX
from engine.errors import EngineError, EngineFailed, EngineRejected, EngineUnavailable
from engine.grpc_wire import CallFailed

_NOT_SERVING = (
    "Request for unknown model",  # core, model_repository_manager.cc: never loaded, or unloaded
    "is not at ready state",  # the same: loading, or unloading
    "is not healthy",  # python_backend, stub_launcher.cc: the model's process died, and is not started again
    "shutting down",
    "Exceeds maximum queue size",
    "Maximum queue size of",  # TensorRT-LLM, executorImpl.cpp
)
"""Words of messages that say that nothing was sampled and that the same request may succeed elsewhere or later."""

_REFUSED_BY_EXECUTOR = "Encountered an error when fetching new request: "
"""Words before the reason why TensorRT-LLM's executor did not take a request (executorImpl.cpp), a prompt past its longest for one.
They stand behind the number that the executor gave the request. Not told apart, a client that asks again would have its endpoint
taken for a broken one.
"""

_DEAD_MODEL_HINT = " (the model's process died; load the model again or restart the Triton server)"


def from_message(message: str, *, sampled: bool) -> EngineError:
    """From the error message of one response. ``sampled``: tokens of this request have arrived before."""
    if "is not healthy" in message:
        message += _DEAD_MODEL_HINT
    if sampled:
        return EngineFailed(f"the generation broke off: {message}")
    if message.startswith(INVALID_REQUEST_PREFIX):
        return EngineRejected(message.removeprefix(INVALID_REQUEST_PREFIX))
    _, refused, reason = message.partition(_REFUSED_BY_EXECUTOR)
    if refused:
        return EngineRejected(reason)
    if any(words in message for words in _NOT_SERVING):
        return EngineUnavailable(message)
    return EngineFailed(f"the model failed: {message}")


def from_rpc(error: grpc.aio.AioRpcError | CallFailed, address: str, *, sampled: bool) -> EngineError:
    """From the status that ended a call to the server at ``address``."""
    code = error.code()
    text = f"Triton at {address}: {code.name}: {error.details()}"
    if sampled:
        return EngineFailed(f"the generation broke off: {text}")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.CANCELLED):
        return EngineUnavailable(text)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return EngineRejected(text)
    return EngineFailed(text)
