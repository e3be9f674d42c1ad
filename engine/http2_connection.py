"""One HTTP/2 connection of a client, on the event loop's own transport: streams, and flow control both ways.

Why not grpc.aio's: there three threads hand each message on to the loop, which costs more than all that is done with it. What is
needed of HTTP/2 is little, since one kind of call is made, and only over plain text.

Received: the connection's window is opened again as data comes, so that no stream can hold up another; a stream's only when its
reader has taken what there is (``Stream.took``), so that a reader that does not read stops its own server. Sent: a write waits for
the windows of both, and while the socket's buffer is full.

A connection ends as a whole by its loss, by an error of the other side, or after GOAWAY, once the streams that the other side still
answers have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import cast

import hpack

from engine import http2
from engine.http2 import ErrorCode, Frame, Http2Error, Setting
from engine.http2_sending import Sending
from engine.http2_stream import STREAM_WINDOW, Receiver, Stream

CONNECTION_WINDOW = 16 * 1024 * 1024
MAX_HEADER_BYTES = 64 * 1024
"""Of one header block; what gRPC's own client takes is 16 KB."""

_SETTINGS = {Setting.ENABLE_PUSH: 0, Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW}


class Http2Connection(asyncio.Protocol):
    """The protocol of one transport. ``on_end`` is called once, when no new stream can be opened on it any more."""

    def __init__(self, on_end: Callable[[Http2Connection], None]) -> None:
        self.sending = Sending()
        self.usable = False
        """Whether streams can be opened: from the server's first SETTINGS to the end."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it is usable for the first time, or will never be."""
        self._on_end = on_end
        self._reader = http2.FrameReader()
        self._decoder = hpack.Decoder(max_header_list_size=MAX_HEADER_BYTES)
        self._streams: dict[int, Stream] = {}
        self._next = 1
        self._unacknowledged = 0
        """Bytes of data that the connection's window was not opened for again."""
        self._block: tuple[Frame, bytearray] | None = None
        """HEADERS that CONTINUATION has to follow, and the block so far."""
        self._over = False
        self._transport: asyncio.Transport
        self._gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        more = CONNECTION_WINDOW - http2.DEFAULT_WINDOW
        self.write(http2.PREFACE + http2.settings_frame(_SETTINGS) + http2.window_update(0, more))

    def connection_lost(self, error: Exception | None) -> None:
        why = f"the connection was lost{f': {error}' if error else ''}"
        self._end(why)
        self._lose(self._streams.values(), why)
        self._gone.set()

    def pause_writing(self) -> None:
        self.sending.pause()

    def resume_writing(self) -> None:
        self.sending.resume()

    def data_received(self, data: bytes) -> None:
        try:
            for received in self._reader.feed(data):
                self._take(received)
        except Http2Error as error:
            self._fail(error)

    async def open(self, receiver: Receiver, header_block: bytes) -> Stream | None:
        """A new stream whose headers were sent, once the server allows one more; None if the connection is over before that."""
        while self.usable and len(self._streams) >= self.sending.streams_limit:
            await self.sending.change()
        if not self.usable:
            return None
        stream = self._streams[self._next] = Stream(self, self._next, receiver)
        self.sending.opened(self._next)
        self.write(http2.header_frames(self._next, header_block))
        self._next += 2
        if self._next > http2.MAX_STREAM:
            self._end("its streams are used up")
        return stream

    def close(self, why: str) -> None:
        """Whatever is in flight fails."""
        self.write(http2.go_away(ErrorCode.NO_ERROR, ""))
        self._end(why)
        self._lose(self._streams.values(), why)
        self._transport.close()

    async def gone(self, limit_s: float) -> None:
        """After ``close``: until the server has taken what was written, ``limit_s`` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._gone.wait()
        self._transport.abort()

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def closed_stream(self, stream: Stream) -> None:
        self._streams.pop(stream.number, None)
        self.sending.closed(stream.number)
        if self._over and not self._streams:
            self._transport.close()

    def _take(self, received: Frame) -> None:
        kind = received.kind
        if self._block is not None and kind != http2.CONTINUATION:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a header block was not ended")
        if kind == http2.DATA:
            self._take_data(received)
        elif kind == http2.HEADERS:
            self._block = (received, bytearray())
            self._take_block(http2.content_of(received), received.flags)
        elif kind == http2.CONTINUATION:
            self._take_block(received.payload, received.flags)
        elif kind == http2.WINDOW_UPDATE:
            self.sending.granted(received.stream, http2.number_in(received.payload) & http2.MAX_WINDOW)
        elif kind == http2.RST_STREAM:
            self._take_reset(received)
        elif kind == http2.SETTINGS:
            self._take_settings(received)
        elif kind == http2.PING and not received.flags & http2.ACK:
            self.write(http2.frame(http2.PING, http2.ACK, 0, received.payload))
        elif kind == http2.GOAWAY:
            self._take_go_away(received.payload)
        elif kind == http2.PUSH_PROMISE:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the server pushes")

    def _take_data(self, received: Frame) -> None:
        size = len(received.payload)
        self._unacknowledged += size
        if self._unacknowledged >= CONNECTION_WINDOW // 2:
            self.write(http2.window_update(0, self._unacknowledged))
            self._unacknowledged = 0
        stream = self._streams.get(received.stream)
        if stream is None:
            self._check_known(received.stream)
            return
        data = http2.content_of(received)
        stream.untaken += size
        stream.receiver.data(data, bool(received.flags & http2.END_STREAM))

    def _take_block(self, part: bytes, flags: int) -> None:
        if self._block is None:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        first, block = self._block
        block += part
        if len(block) > MAX_HEADER_BYTES:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "a header block without end")
        if not flags & http2.END_HEADERS:
            return
        self._block = None
        try:
            headers = dict(self._decoder.decode(bytes(block), raw=True))
        except hpack.HPACKError as error:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, f"headers that cannot be read: {error}") from error
        stream = self._streams.get(first.stream)
        if stream is None:
            self._check_known(first.stream)
        elif not headers.get(b":status", b"").startswith(b"1"):
            stream.receiver.headers(headers, bool(first.flags & http2.END_STREAM))

    def _take_reset(self, received: Frame) -> None:
        code = http2.number_in(received.payload)
        stream = self._streams.get(received.stream)
        if stream is None:
            self._check_known(received.stream)
            return
        stream.close()
        stream.receiver.reset(code)

    def _take_settings(self, received: Frame) -> None:
        if received.flags & http2.ACK:
            return
        for setting, value in http2.settings_in(received.payload):
            if setting == Setting.MAX_CONCURRENT_STREAMS:
                self.sending.streams_limit = value
            elif setting == Setting.MAX_FRAME_SIZE:
                self.sending.max_frame = value
            elif setting == Setting.INITIAL_WINDOW_SIZE:
                self.sending.widen(value)
        self.write(http2.frame(http2.SETTINGS, http2.ACK, 0))
        if not self.ready.done():
            self.usable = not self._over
            self.ready.set_result(None)
        self.sending.changed()

    def _take_go_away(self, payload: bytes) -> None:
        """Streams behind the last one that the server names were not looked at, and those before it go on."""
        last = int.from_bytes(payload[:4], "big") & http2.MAX_STREAM
        text = payload[8:].decode("ascii", "replace")
        self._end("the server is going away")
        refused = [stream for number, stream in self._streams.items() if number > last]
        self._lose(refused, f"the server is going away{f': {text}' if text else ''}")
        if not self._streams:
            self._transport.close()

    def _check_known(self, number: int) -> None:
        """Of streams that are closed something may still come. Raises: Http2Error, for those that never were."""
        if number == 0 or number % 2 == 0 or number >= self._next:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a frame on stream {number}, which was never opened")

    def _fail(self, error: Http2Error) -> None:
        """The other side broke the protocol."""
        self.write(http2.go_away(error.code, str(error)))
        self._end(str(error))
        self._lose(self._streams.values(), f"the server broke HTTP/2: {error}")
        self._transport.close()

    def _end(self, why: str) -> None:
        if self._over:
            return
        self._over, self.usable = True, False
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(why))
            self.ready.exception()
        self.sending.changed()
        self._on_end(self)

    def _lose(self, streams: Iterable[Stream], why: str) -> None:
        for stream in list(streams):
            stream.close()
            stream.receiver.lost(why)
