"""What one side of an HTTP/2 connection may send: the windows, the other side's limits, and the socket's buffer."""

from __future__ import annotations

import asyncio

from engine import http2
from engine.http2 import ErrorCode, Http2Error


class Sending:
    """Of one connection. Who has to wait looks again whenever something changed."""

    def __init__(self) -> None:
        self.max_frame = http2.MAX_FRAME
        self.streams_limit = http2.MAX_STREAM
        """Streams at once."""
        self.initial_window = http2.DEFAULT_WINDOW
        self._window = http2.DEFAULT_WINDOW
        self._stream_windows: dict[int, int] = {}
        self._paused = False
        self._waiting: set[asyncio.Future[None]] = set()

    def opened(self, stream: int) -> None:
        self._stream_windows[stream] = self.initial_window

    def closed(self, stream: int) -> None:
        self._stream_windows.pop(stream, None)
        self.changed()

    def pause(self) -> None:
        """The socket's buffer is full."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self.changed()

    def widen(self, window: int) -> None:
        """The initial window is another one, for the streams that there are, too. Raises: Http2Error."""
        if window > http2.MAX_WINDOW:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a window that is too large")
        for stream in self._stream_windows:
            self._stream_windows[stream] += window - self.initial_window
        self.initial_window = window

    def granted(self, stream: int, size: int) -> None:
        """Of stream 0, which is the connection, or of another one."""
        if stream == 0:
            self._window += size
        elif stream in self._stream_windows:
            self._stream_windows[stream] += size
        self.changed()

    async def room(self, stream: int, size: int) -> int:
        """How many of ``size`` bytes may be sent on a stream now, at least one; they are counted as sent. 0 if it is closed."""
        while stream in self._stream_windows:
            room = min(self._window, self._stream_windows[stream], self.max_frame, size)
            if room > 0 and not self._paused:
                self._window -= room
                self._stream_windows[stream] -= room
                return room
            await self.change()
        return 0

    def changed(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def change(self) -> None:
        """Until something changed of what a sender may wait for."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)
