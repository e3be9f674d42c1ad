"""One stream of an HTTP/2 connection: what is sent on it, and who is given what comes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from engine import http2
from engine.http2 import ErrorCode

if TYPE_CHECKING:
    from engine.http2_connection import Http2Connection

STREAM_WINDOW = 256 * 1024
"""Bytes that a server may send on a stream before its reader has taken any; a token is some twenty to two hundred."""


class Receiver(Protocol):
    """Who is given what comes on a stream. ``ended``: the server's side of it is over."""

    def headers(self, headers: Mapping[bytes, bytes], ended: bool) -> None: ...
    def data(self, data: bytes, ended: bool) -> None: ...

    def reset(self, code: int) -> None:
        """The server ended the stream with this error code."""

    def lost(self, why: str) -> None:
        """The connection is no more, or the server will not answer."""


class Stream:
    """One request and its answer."""

    def __init__(self, connection: Http2Connection, number: int, receiver: Receiver) -> None:
        self.number = number
        self.receiver = receiver
        self.untaken = 0
        """Bytes that came since the server was last told that it may send as many."""
        self._connection = connection
        self._open = True
        self._sent_all = False

    async def send(self, data: bytes, *, last: bool) -> None:
        """Returns when the transport has all of it (at least a byte), or the stream is closed. ``last``: no more follows."""
        at = 0
        while room := await self._connection.sending.room(self.number, len(data) - at):
            at += room
            self._sent_all = last and at == len(data)
            flags = http2.END_STREAM if self._sent_all else 0
            self._connection.write(http2.frame(http2.DATA, flags, self.number, data[at - room : at]))
            if at == len(data):
                return

    def took(self) -> None:
        """All that came so far was taken: the server may send as much again."""
        if self.untaken >= STREAM_WINDOW // 2 and self._open:
            self._connection.write(http2.window_update(self.number, self.untaken))
            self.untaken = 0

    def ended(self) -> None:
        """The server said its last on it."""
        if self._open and not self._sent_all:
            self._connection.write(http2.reset(self.number, ErrorCode.NO_ERROR))
        self.close()

    def cancel(self) -> None:
        """Have the server stop, unless it is over."""
        if self._open:
            self._connection.write(http2.reset(self.number, ErrorCode.CANCEL))
        self.close()

    def close(self) -> None:
        """Nothing more is sent or received on it."""
        if self._open:
            self._open = False
            self._connection.closed_stream(self)
