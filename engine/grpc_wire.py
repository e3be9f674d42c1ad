"""gRPC over HTTP/2 as bytes: messages in a stream of data, and what ends a call (gRPC, ``doc/PROTOCOL-HTTP2.md``). Pure.

A message is preceded by one byte, 1 if it is compressed, and its length as 32 bits. Nothing compressed is asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import unquote

import grpc

from engine.http2 import ErrorCode

MAX_MESSAGE_BYTES = 2**31 - 1
"""What Triton's server sets for itself."""

_PREFIX = struct.Struct(">BL")
_CODES: Mapping[int, grpc.StatusCode] = MappingProxyType({code.value[0]: code for code in grpc.StatusCode})
_BY_HTTP_STATUS: Mapping[bytes, grpc.StatusCode] = MappingProxyType(
    {
        b"400": grpc.StatusCode.INTERNAL,
        b"401": grpc.StatusCode.UNAUTHENTICATED,
        b"403": grpc.StatusCode.PERMISSION_DENIED,
        b"404": grpc.StatusCode.UNIMPLEMENTED,
        b"429": grpc.StatusCode.UNAVAILABLE,
        b"502": grpc.StatusCode.UNAVAILABLE,
        b"503": grpc.StatusCode.UNAVAILABLE,
        b"504": grpc.StatusCode.UNAVAILABLE,
    }
)
"""Of an answer that is not gRPC's (gRPC, ``doc/http-grpc-status-mapping.md``); every other is UNKNOWN."""
_BY_RESET: Mapping[int, grpc.StatusCode] = MappingProxyType(
    {
        ErrorCode.REFUSED_STREAM: grpc.StatusCode.UNAVAILABLE,
        ErrorCode.CANCEL: grpc.StatusCode.CANCELLED,
        ErrorCode.ENHANCE_YOUR_CALM: grpc.StatusCode.RESOURCE_EXHAUSTED,
        ErrorCode.INADEQUATE_SECURITY: grpc.StatusCode.PERMISSION_DENIED,
    }
)
"""Of a stream that was reset (``PROTOCOL-HTTP2.md``, "Errors"); every other is INTERNAL."""


class CallFailed(Exception):
    """The status that ended a call, other than OK."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code = code
        self._details = details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


class MessageReader:
    """Data in, whole messages out; linear in the data however it is cut."""

    def __init__(self) -> None:
        self._partial = bytearray()
        self._needed = 0
        """Bytes that ``_partial`` must have before more of it can be told."""

    def feed(self, data: bytes) -> list[bytes]:
        """Raises: CallFailed."""
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed:
                return []
            data = bytes(self._partial)
            self._partial.clear()
        messages, at = [], 0
        while len(data) - at >= _PREFIX.size:
            end = at + _size_of(data, at)
            if end > len(data):
                break
            messages.append(data[at + _PREFIX.size : end])
            at = end
        if at < len(data):
            self._partial += data[at:]
            self._needed = _size_of(data, at) if len(data) - at >= _PREFIX.size else _PREFIX.size
        return messages

    @property
    def between(self) -> bool:
        """Whether nothing is held of a message that is not whole."""
        return not self._partial


def framed(message: bytes) -> bytes:
    return _PREFIX.pack(0, len(message)) + message


def status_of(headers: Mapping[bytes, bytes]) -> CallFailed | None:
    """Of the headers that end a call; None if it ended well."""
    http_status = headers.get(b":status", b"200")
    if b"grpc-status" not in headers:
        if http_status != b"200":
            return answered_otherwise(headers)
        return CallFailed(grpc.StatusCode.UNKNOWN, "the server ended the call without a status")
    number = headers[b"grpc-status"]
    code = _CODES.get(int(number), grpc.StatusCode.UNKNOWN) if number.isdigit() else grpc.StatusCode.UNKNOWN
    if code is grpc.StatusCode.OK:
        return None
    return CallFailed(code, unquote(headers.get(b"grpc-message", b"").decode("ascii", "replace")))


def answered_otherwise(headers: Mapping[bytes, bytes]) -> CallFailed | None:
    """The failure that the first headers of an answer are, if it is not an answer of gRPC."""
    http_status, media_type = headers.get(b":status", b""), headers.get(b"content-type", b"")
    if http_status != b"200":
        code = _BY_HTTP_STATUS.get(http_status, grpc.StatusCode.UNKNOWN)
        return CallFailed(code, f"the server answered with HTTP status {http_status.decode('ascii', 'replace')}")
    if not media_type.startswith(b"application/grpc"):
        return CallFailed(grpc.StatusCode.UNKNOWN, f"the server answered with {media_type.decode('ascii', 'replace')}")
    return None


def was_reset(code: int) -> CallFailed:
    """The status of a call whose stream the server has reset."""
    return CallFailed(_BY_RESET.get(code, grpc.StatusCode.INTERNAL), f"the server reset the stream, with code {code}")


def _size_of(data: bytes, at: int) -> int:
    """Bytes of the message whose prefix is at ``at``, prefix included. Raises: CallFailed."""
    compressed, length = _PREFIX.unpack_from(data, at)
    if compressed:
        raise CallFailed(grpc.StatusCode.INTERNAL, "the server sent a compressed message, which nobody asked for")
    if length > MAX_MESSAGE_BYTES:
        raise CallFailed(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the server sent a message of {length} bytes")
    return int(length) + _PREFIX.size
