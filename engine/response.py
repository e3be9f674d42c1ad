"""Triton's responses to one request as tensors by name.

The responses of a stream differ in little more than their tensors' bytes: what comes before those (names, types, shapes,
parameters) is byte by byte the same whenever as many tokens came. So a response that has the size of an earlier one, begins like
it, and has its tensors in the same places, is read by these places. All others are parsed as protobuf, which was a third of what a
message cost here, since its objects are made one by one as they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from engine.channel import messages
from engine.contract import WireTensor
from engine.errors import EngineProtocolError
from engine.failures import from_message

LAYOUTS = 16
"""Remembered for one request, each some hundred bytes. Where every response has a size of its own, no more than these are made."""

_RAW_TAG = b"\x32"
"""Of ``raw_output_contents`` in ModelInferResponse, its last field (Triton, ``grpc_service.proto``)."""


class Response(NamedTuple):
    """One response. Of its tensors the shapes are left out."""

    outputs: Mapping[str, WireTensor]
    final: bool


class _Place(NamedTuple):
    """Of one tensor in a response: ``mark``, at ``at``, says how long it is; its bytes are ``[begin, end)``."""

    name: str
    dtype: str
    mark: bytes
    at: int
    begin: int
    end: int


class _Layout(NamedTuple):
    head: bytes
    places: Sequence[_Place]
    final: bool


class Responses:
    """Reads the responses to the request ``request_id``, one after the other."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._layouts: dict[int, _Layout] = {}
        """By the size of the response, bytes."""

    def read(self, data: bytes, *, sampled: bool) -> Response:
        """``data`` is a ModelStreamInferResponse. ``sampled``: tokens have come before.

        Raises: EngineError, which the response may be; EngineProtocolError, if it is none, or not to this request.
        """
        layout = self._layouts.get(len(data))
        return (layout and _by_places(data, layout)) or self._parsed(data, sampled)

    def _parsed(self, data: bytes, sampled: bool) -> Response:
        try:
            message = messages.ModelStreamInferResponse.FromString(data)
        except DecodeError as error:
            raise EngineProtocolError(f"a response is no ModelStreamInferResponse: {error}") from error
        if message.error_message:
            raise from_message(message.error_message, sampled=sampled)
        response = message.infer_response
        if response.id != self._request_id:
            raise EngineProtocolError(f"the response to {self._request_id!r} names the request {response.id!r}")
        if len(response.outputs) != len(response.raw_output_contents):
            found = f"{len(response.outputs)} outputs and {len(response.raw_output_contents)} raw contents"
            raise EngineProtocolError(f"one response holds {found}")
        outputs = [
            WireTensor(output.name, output.datatype, (), raw)
            for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
        ]
        final = bool(response.parameters["triton_final_response"].bool_param)
        if len(self._layouts) < LAYOUTS:
            self._remember(data, outputs, final)
        return Response({output.name: output for output in outputs}, final)

    def _remember(self, data: bytes, outputs: Sequence[WireTensor], final: bool) -> None:
        """Nothing, where the tensors are not the last thing in the response, one behind the other."""
        marks = [_RAW_TAG + _varint(len(output.data)) for output in outputs]
        tail = b"".join(mark + output.data for mark, output in zip(marks, outputs, strict=True))
        if not data.endswith(tail):
            return
        places, at = [], len(data) - len(tail)
        for mark, output in zip(marks, outputs, strict=True):
            begin = at + len(mark)
            end = begin + len(output.data)
            places.append(_Place(output.name, output.dtype, mark, at, begin, end))
            at = end
        self._layouts[len(data)] = _Layout(data[: len(data) - len(tail)], places, final)


def _by_places(data: bytes, layout: _Layout) -> Response | None:
    """None if the response is laid out otherwise."""
    if not data.startswith(layout.head):
        return None
    outputs = {}
    for name, dtype, mark, at, begin, end in layout.places:
        if data[at:begin] != mark:
            return None
        outputs[name] = WireTensor(name, dtype, (), data[begin:end])
    return Response(outputs, layout.final)


def _varint(number: int) -> bytes:
    """As protobuf writes lengths: seven bits a byte, the lowest first, the top bit set where more follow."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
