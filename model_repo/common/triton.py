"""The only file that touches Triton's Python API: requests as ``requests.Reader``, response senders as
``replies.Sender``."""

from __future__ import annotations

import threading
from typing import Any

import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # inside Triton only
from numpy.typing import NDArray

from .replies import Outputs


class TritonReader:
    """Reads one ``pb_utils.InferenceRequest``."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def request_id(self) -> str:
        return str(self._request.request_id())

    def parameters(self) -> str:
        return str(self._request.parameters())

    def tensor(self, name: str) -> NDArray[Any] | None:
        tensor = pb_utils.get_input_tensor_by_name(self._request, name)
        return None if tensor is None else tensor.as_numpy()


class TritonSender:
    """Sends through one ``ResponseSender``.

    The final response frees what ``is_cancelled`` asks in the server's process, so the two exclude each other, and
    after the final response nothing is asked or sent.

    Triton 2.51 drops the references that a response holds (to tensors that the client did not request, for one) without
    holding the interpreter's lock. Should one be the last, memory is corrupted: so only requested tensors are made, and
    a frame here refers to them until ``send`` is back.
    """

    def __init__(self, request: Any) -> None:
        self._sender = request.get_response_sender()
        self._requested = frozenset(request.requested_output_names())
        self._lock = threading.Lock()
        self._ended = False

    def send(self, outputs: Outputs, *, final: bool) -> None:
        tensors = [pb_utils.Tensor(name, array) for name, array in outputs.items() if name in self._requested]
        self._send(pb_utils.InferenceResponse(output_tensors=tensors), final)

    def fail(self, message: str) -> None:
        self._send(pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(message)), True)

    def is_cancelled(self) -> bool:
        with self._lock:
            return not self._ended and self._sender.is_cancelled()

    def _send(self, response: Any, final: bool) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = final
            try:
                self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0)
            except pb_utils.TritonModelException as error:
                pb_utils.Logger.log_warn(f"a response could not be sent: {error}")


def warn(message: str) -> None:
    """A line for the server's log."""
    pb_utils.Logger.log_warn(message)
