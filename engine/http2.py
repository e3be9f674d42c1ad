"""HTTP/2 frames as bytes, as far as a client of gRPC streams needs them (RFC 9113). Pure; header blocks are for ``hpack``.

A frame is a header of nine bytes (24 bits of length, type, flags, 31 bits of stream) and a payload. Frames of types that nobody
knows are to be ignored, so they come out of here like all others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

MAX_FRAME = 16_384
"""Bytes of payload that either side may send unless the other one allows more; more is not allowed here."""
DEFAULT_WINDOW = 65_535
MAX_WINDOW = 2**31 - 1
MAX_STREAM = 2**31 - 1

_HEADER = struct.Struct(">BHBBL")
_SETTING = struct.Struct(">HL")


class Setting(IntEnum):
    """What a side says of itself (RFC 9113, 6.5.2)."""

    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5


class ErrorCode(IntEnum):
    """Why a stream or a connection is ended (RFC 9113, 7), those that are sent or told apart here."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12


class Http2Error(Exception):
    """What the other side sent ends the connection."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


class FrameReader:
    """Bytes in, whole frames out. What is held of one that is not whole is bounded by ``max_frame``, bytes of payload."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._max_frame = max_frame
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        """Raises: Http2Error."""
        data = self._rest + data if self._rest else data
        frames, at, size = [], 0, len(data)
        while size - at >= _HEADER.size:
            high, low, kind, flags, stream = _HEADER.unpack_from(data, at)
            length = high << 16 | low
            if length > self._max_frame:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            begin = at + _HEADER.size
            if size < begin + length:
                break
            at = begin + length
            frames.append(Frame(kind, flags, stream & MAX_STREAM, data[begin:at]))
        self._rest = data[at:]
        return frames


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return _HEADER.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def header_frames(stream: int, block: bytes) -> bytes:
    """A header block as HEADERS, and CONTINUATION where it is long. It does not end the stream."""
    parts = [block[at : at + MAX_FRAME] for at in range(0, len(block), MAX_FRAME)]
    ends = [0] * (len(parts) - 1) + [END_HEADERS]
    kinds = [HEADERS] + [CONTINUATION] * (len(parts) - 1)
    return b"".join(frame(kind, end, stream, part) for kind, end, part in zip(kinds, ends, parts, strict=True))


def settings_frame(settings: Mapping[Setting, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(setting, value) for setting, value in settings.items()))


def window_update(stream: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big"))


def reset(stream: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def go_away(code: ErrorCode, text: str) -> bytes:
    return frame(GOAWAY, 0, 0, bytes(4) + code.to_bytes(4, "big") + text.encode())


def settings_in(payload: bytes) -> Iterable[tuple[int, int]]:
    """Raises: Http2Error."""
    if len(payload) % _SETTING.size:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of an odd length")
    return _SETTING.iter_unpack(payload)


def number_in(payload: bytes) -> int:
    """The 32 bits of a frame that is nothing else. Raises: Http2Error."""
    if len(payload) != 4:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a frame that should be one number is not")
    return int.from_bytes(payload, "big")


def content_of(received: Frame) -> bytes:
    """The payload of DATA or HEADERS without padding and priority. Raises: Http2Error."""
    payload, padding = received.payload, 0
    if not received.flags & (PADDED | HAS_PRIORITY):
        return payload
    if received.flags & PADDED:
        padding, payload = (payload[0] if payload else MAX_FRAME), payload[1:]
    if received.kind == HEADERS and received.flags & HAS_PRIORITY:
        payload = payload[5:]
    if padding > len(payload):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a frame is all padding")
    return payload[: len(payload) - padding]
