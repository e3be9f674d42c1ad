"""The four protocols as a load generator speaks them: one user message, a reply that is streamed or not, over a bare socket.

A bare socket, because what is measured is when it is closed, how little it reads, or when its bytes come; a client library would
stand in between.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. ``mark`` is in every event that carries text of its reply, and in no other."""

    protocol: str
    streams: bool
    path: str
    body: dict[str, Any]
    mark: bytes

    @property
    def name(self) -> str:
        return f"{self.protocol} {'streamed' if self.streams else 'whole'}"


def ask(protocol: str, text: str, *, streams: bool) -> Ask:
    """``protocol`` is one of ``PROTOCOLS``."""
    message = {"role": "user", "content": text}
    stream = {"stream": True} if streams else {}
    if protocol == "anthropic":
        body = {"model": "rollserve", "max_tokens": 8192, "messages": [message], **stream}
        return Ask(protocol, streams, "/v1/messages", body, b'"text_delta"')
    if protocol == "chat":
        return Ask(protocol, streams, "/v1/chat/completions", {"messages": [message], **stream}, b'"delta":{"content":')
    if protocol == "responses":
        return Ask(protocol, streams, "/v1/responses", {"input": text, **stream}, b"event: response.output_text.delta")
    action = "streamGenerateContent?alt=sse" if streams else "generateContent"
    contents = [{"role": "user", "parts": [{"text": text}]}]
    return Ask(protocol, streams, f"/v1beta/models/rollserve:{action}", {"contents": contents}, b'"text"')


NETWORK_SEGMENT = 1400
"""Bytes. Loopback's of 64 kB are more than a small buffer holds, and what a slow reader takes would come in fits and starts."""
PROTOCOLS = ("anthropic", "chat", "responses", "gemini")


class Wire:
    """One connection, on which one request was sent."""

    def __init__(self, plain: socket.socket) -> None:
        self._socket = plain
        self._loop = asyncio.get_running_loop()

    async def read(self, most: int = 65536) -> bytes:
        """What is there next; empty at the end."""
        return await self._loop.sock_recv(self._socket, most)

    async def until(self, mark: bytes) -> bytes:
        """Everything up to where ``mark`` was seen. Raises: ConnectionError, with what came, if the connection ends before."""
        seen = b""
        while mark not in seen:
            chunk = await self.read()
            if not chunk:
                raise ConnectionError(f"the server ended the connection: {seen[-500:]!r}")
            seen += chunk
        return seen

    def close(self, *, reset: bool = False) -> None:
        """Go away: with a FIN, or with a RST."""
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            self._socket.shutdown(socket.SHUT_RDWR)  # to close a socket that holds unread data would send a RST
        self._socket.close()


@asynccontextmanager
async def sent(url: str, sid: str, what: Ask, *, receive_buffer: int | None = None) -> AsyncIterator[Wire]:
    """A connection with a request of session ``sid`` under way; closed with the block.

    ``receive_buffer`` bounds the bytes that the client's kernel takes unread, about; segments are then those of a network.
    """
    address = urlsplit(url)
    with socket.socket() as plain:
        if receive_buffer is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, NETWORK_SEGMENT)
        plain.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(plain, (address.hostname, address.port))
        body = json.dumps(what.body).encode()
        head = f"POST {what.path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        head += f"session-id: {sid}\r\nContent-Length: {len(body)}\r\n\r\n"
        await loop.sock_sendall(plain, head.encode() + body)
        yield Wire(plain)
