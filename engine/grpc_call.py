"""One call of a streaming method of gRPC over a connection of our own: requests out, responses in, and the status at its end.

Responses that have come are kept until they are read; when the reader is behind by a window the server waits. What the server sent
before its call failed is read before the failure; after ``cancel`` nothing is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

import grpc
import hpack

from engine.grpc_wire import CallFailed, MessageReader, answered_otherwise, framed, status_of, was_reset
from engine.http2_connection import Http2Connection
from engine.http2_stream import Stream

AT_ONCE = 8
"""Responses that are read one after the other before the event loop's other tasks have their turn: about a millisecond's work. They
also leave as one, since whoever writes them to a client is one of these tasks."""


def header_block(authority: str, method: str) -> bytes:
    """The headers of a call, the same for all calls of a method: none of them goes into the table that both sides keep."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": authority,
        "te": "trailers",
        "content-type": "application/grpc",
        "user-agent": "rollserve",
    }
    return hpack.Encoder().encode([(name, value, True) for name, value in headers.items()], huffman=False)


class GrpcCall:
    """``open``, ``write`` the requests, ``read`` the responses; ``cancel`` unless it has ended."""

    def __init__(self) -> None:
        self._stream: Stream | None = None
        self._reader = MessageReader()
        self._messages: deque[bytes] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._in_a_row = 0
        self._answered = False
        self._ended = False
        self._failure: CallFailed | None = None

    async def open(self, connection: Http2Connection, headers: bytes) -> None:
        """What comes of it is known by ``read``."""
        stream = await connection.open(self, headers)
        if stream is None:
            self.lost("the connection was lost")
        elif self._ended:
            stream.cancel()
        else:
            self._stream = stream

    async def write(self, message: bytes, *, last: bool) -> None:
        """Nothing is written to a call that has ended: ``read`` says why it has."""
        if self._stream is not None:
            await self._stream.send(framed(message), last=last)

    async def read(self) -> bytes | None:
        """The next response; None when the call has ended well. One reader at a time. Raises: CallFailed."""
        if self._in_a_row >= AT_ONCE:
            self._in_a_row = 0
            await asyncio.sleep(0)
        while not self._messages:
            if self._ended:
                if self._failure is not None:
                    raise self._failure
                return None
            self._in_a_row = 0
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        self._in_a_row += 1
        message = self._messages.popleft()
        if not self._messages and self._stream is not None:
            self._stream.took()
        return message

    def cancel(self) -> None:
        if not self._ended:
            self._messages.clear()
            self._give_up(CallFailed(grpc.StatusCode.CANCELLED, "cancelled on this side"))

    # What comes on its stream (``http2_stream.Receiver``).

    def headers(self, headers: Mapping[bytes, bytes], ended: bool) -> None:
        failure = None if self._answered or b"grpc-status" in headers else answered_otherwise(headers)
        self._answered = True
        if ended:
            self._end(failure or self._status(headers))
        elif failure is not None:
            self._give_up(failure)

    def data(self, data: bytes, ended: bool) -> None:
        try:
            self._messages += self._reader.feed(data)
        except CallFailed as failure:
            self._give_up(failure)
            return
        if ended:
            self._end(CallFailed(grpc.StatusCode.UNKNOWN, "the server ended the call without a status"))
        elif self._messages:
            self._wake()
        elif self._stream is not None:
            self._stream.took()  # part of a message that may be larger than the window

    def reset(self, code: int) -> None:
        self._end(was_reset(code))

    def lost(self, why: str) -> None:
        self._end(CallFailed(grpc.StatusCode.UNAVAILABLE, why))

    def _status(self, trailers: Mapping[bytes, bytes]) -> CallFailed | None:
        failure = status_of(trailers)
        if failure is None and not self._reader.between:
            return CallFailed(grpc.StatusCode.INTERNAL, "the server ended the call inside a message")
        return failure

    def _give_up(self, failure: CallFailed) -> None:
        """What the server sends is of no use."""
        if self._stream is not None:
            self._stream.cancel()
        self._end(failure)

    def _end(self, failure: CallFailed | None) -> None:
        if not self._ended:
            self._ended, self._failure = True, failure
            if self._stream is not None:
                self._stream.ended()
            self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
