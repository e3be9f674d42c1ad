"""A client that is one bare socket: what came is what the server wrote, chunked encoding and all, to the last byte."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

END_OF_CHUNKS = b"\r\n0\r\n\r\n"
"""With the end of the line before it: a header may end with a 0, too."""
LIMIT_S = 20.0
"""Far more than anything here takes; reaching it fails the test."""


class RawConnection:
    """``seen`` is everything that came so far."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, pauses: bool) -> None:
        self._pauses = pauses
        if pauses:
            writer.transport.pause_reading()
        self._reader = reader
        self._writer = writer
        self.seen = bytearray()

    @property
    def status(self) -> int:
        return int(self.seen.split(b" ", 2)[1])

    @property
    def complete(self) -> bool:
        """Whether the response ended as chunked responses end."""
        return self.seen.endswith(END_OF_CHUNKS)

    async def more(self) -> None:
        """Read what is there next. Fails if the connection ends instead."""
        chunk = await self._read()
        assert chunk, self.seen
        self.seen += chunk

    async def until(self, text: str) -> bytearray:
        """Read until ``text`` is there. Fails if the connection ends before."""
        while text.encode() not in self.seen:
            await self.more()
        return self.seen

    async def rest(self) -> bytearray:
        """Read until the server closes the connection, or ends the response."""
        while not self.complete and (chunk := await self._read()):
            self.seen += chunk
        return self.seen

    async def _read(self) -> bytes:
        if self._pauses:
            self._pauses = False
            self._writer.transport.resume_reading()
        async with asyncio.timeout(LIMIT_S):
            return await self._reader.read(2**16)

    def abort(self) -> None:
        """Go away as a killed process does."""
        self._writer.transport.abort()


@asynccontextmanager
async def raw_request(
    url: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    receive_buffer: int | None = None,
    reads: bool = True,
) -> AsyncIterator[RawConnection]:
    """A POST with ``body``, or a GET. ``receive_buffer`` bytes are all that the client's kernel takes unread; without ``reads`` the
    client itself takes nothing until it is asked for."""
    address = urlsplit(url)
    plain = socket.socket()
    if receive_buffer is not None:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, (address.hostname, address.port))
    reader, writer = await asyncio.open_connection(sock=plain)
    sent = b"" if body is None else json.dumps(body).encode()
    lines = {
        "Host": address.netloc,
        "Content-Type": "application/json",
        "Content-Length": str(len(sent)),
        **(headers or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\n{head}\r\n".encode() + sent)
    try:
        yield RawConnection(reader, writer, pauses=not reads)
    finally:
        writer.transport.abort()
