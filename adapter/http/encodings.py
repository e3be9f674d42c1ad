"""Content encodings of request bodies: gzip, deflate and zstd (which codex sends), never larger than what the server takes.

Read here rather than by aiohttp, which answers an encoding that it does not know, or a broken one, in plain text.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType

from adapter.errors import BadRequest, BodyTooLarge, UnsupportedEncoding

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_ENCODINGS = 2
"""Encodings laid over one another; RFC 9110 sets no limit, and nobody uses more than one."""


def decoded(raw: bytes, encodings: str, limit: int) -> bytes:
    """``raw`` without its ``encodings``, the value of ``Content-Encoding``; at most ``limit`` bytes.

    Raises: UnsupportedEncoding, BadRequest, BodyTooLarge.
    """
    names = [name for part in encodings.lower().split(",") if (name := part.strip()) not in ("", "identity")]
    unknown = [name for name in names if name not in _DECODERS]
    if unknown or len(names) > MAX_ENCODINGS:
        raise UnsupportedEncoding(f"cannot read a body encoded as {encodings[:64]!r}; {', '.join(_DECODERS)} work")
    for name in reversed(names):
        try:
            raw = _DECODERS[name](raw, limit + 1)
        except (zlib.error, zstd.ZstdError, EOFError) as error:
            raise BadRequest(f"the body is not valid {name}", field="body") from error
        if len(raw) > limit:
            raise BodyTooLarge("the body is larger than this server takes (--max-body-bytes)")
    return raw


def _inflated(raw: bytes, limit: int, window: int) -> bytes:
    """Raises: zlib.error, EOFError. gzip's members may follow one another."""
    made: list[bytes] = []
    while raw and limit > 0:
        machine = zlib.decompressobj(window)
        made.append(machine.decompress(raw, limit))
        limit -= len(made[-1])
        if not machine.eof and limit > 0:
            raise EOFError
        raw = machine.unused_data
    return b"".join(made)


def _gunzipped(raw: bytes, limit: int) -> bytes:
    return _inflated(raw, limit, 16 + zlib.MAX_WBITS)


def _undeflated(raw: bytes, limit: int) -> bytes:
    """With zlib's header, as RFC 9110 has it, or without, as some clients do."""
    has_header = len(raw) > 1 and raw[0] & 0x0F == zlib.DEFLATED and (raw[0] << 8 | raw[1]) % 31 == 0
    return _inflated(raw, limit, zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)


def _unzstd(raw: bytes, limit: int) -> bytes:
    """Raises: ZstdError, EOFError. Frames may follow one another."""
    made: list[bytes] = []
    while raw and limit > 0:
        machine = zstd.ZstdDecompressor()
        made.append(machine.decompress(raw, limit))
        limit -= len(made[-1])
        if not machine.eof and limit > 0:
            raise EOFError
        raw = machine.unused_data
    return b"".join(made)


_DECODERS: Mapping[str, Callable[[bytes, int], bytes]] = MappingProxyType(
    {"gzip": _gunzipped, "x-gzip": _gunzipped, "deflate": _undeflated, "zstd": _unzstd}
)
