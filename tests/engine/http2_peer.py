"""A server that speaks HTTP/2 frame by frame, as a test tells it to: for what gRPC's own server cannot be made to do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import hpack

from engine import http2
from engine.http2 import Frame, Setting
from tests.support.wait import LIMIT_S

OK = {":status": "200", "content-type": "application/grpc"}


class Peer:
    """One connection, from the server's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = http2.FrameReader(max_frame=2**24)
        self._pending: list[Frame] = []
        self._encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()

    async def greet(self, settings: Mapping[Setting, int] | None = None) -> None:
        """Both prefaces; the client's settings are acknowledged, and its acknowledgement of ours was seen."""
        async with asyncio.timeout(LIMIT_S):
            assert await self._reader.readexactly(len(http2.PREFACE)) == http2.PREFACE
        self.send(http2.settings_frame(settings or {}))
        await self.expect(http2.SETTINGS)
        self.send(http2.frame(http2.SETTINGS, http2.ACK, 0))
        assert (await self.expect(http2.SETTINGS)).flags & http2.ACK

    async def next(self) -> Frame:
        """The next frame. Raises: EOFError, if the client has closed the connection."""
        async with asyncio.timeout(LIMIT_S):
            while not self._pending:
                data = await self._reader.read(65536)
                if not data:
                    raise EOFError
                self._pending += self._frames.feed(data)
        return self._pending.pop(0)

    async def expect(self, kind: int) -> Frame:
        """The next frame that is no WINDOW_UPDATE, unless one is wanted: it is of this kind."""
        while (found := await self.next()).kind == http2.WINDOW_UPDATE != kind:
            pass
        assert found.kind == kind, found
        return found

    async def request(self) -> int:
        """A whole request, read to its end: the number of its stream."""
        first = await self.expect(http2.HEADERS)
        self.decoder.decode(first.payload)
        while not (await self.expect(http2.DATA)).flags & http2.END_STREAM:
            pass
        return first.stream

    async def round_trip(self) -> None:
        """What was sent so far has been read there, and nothing but this was written in answer."""
        self.send(http2.frame(http2.PING, 0, 0, bytes(8)))
        await self.expect(http2.PING)

    def send(self, *frames: bytes) -> None:
        self._writer.write(b"".join(frames))

    def block(self, headers: Mapping[str, str]) -> bytes:
        return self._encoder.encode(headers.items())

    def answer(self, stream: int, headers: Mapping[str, str] = OK, *, last: bool = False) -> None:
        flags = http2.END_HEADERS | (http2.END_STREAM if last else 0)
        self.send(http2.frame(http2.HEADERS, flags, stream, self.block(headers)))

    def data(self, stream: int, data: bytes) -> None:
        for at in range(0, len(data), http2.MAX_FRAME):
            self.send(http2.frame(http2.DATA, 0, stream, data[at : at + http2.MAX_FRAME]))

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


class Peers:
    """The connections that clients have made, in order."""

    def __init__(self) -> None:
        self._made: asyncio.Queue[Peer] = asyncio.Queue()
        self._all: list[Peer] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._all.append(Peer(reader, writer))
        self._made.put_nowait(self._all[-1])

    async def next(self) -> Peer:
        async with asyncio.timeout(LIMIT_S):
            return await self._made.get()

    async def close(self) -> None:
        for peer in self._all:
            await peer.close()


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[str, Peers]]:
    """The address of the server, and who has connected to it."""
    peers = Peers()
    server = await asyncio.start_server(peers.accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield f"{host}:{port}", peers
    finally:
        server.close()
        await peers.close()
