"""One endpoint as the pool talks to it, and how it comes by a client for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Protocol

from engine.types import EngineInfo, GenerateRequest, TokenChunk


class Client(Protocol):
    """One endpoint as the pool talks to it: ``engine.client.TritonClient``."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def losses(self) -> int: ...

    def on_loss(self, tell: Callable[[], None]) -> None: ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]: ...

    async def connect(self) -> None: ...

    async def control(self, operation: str, **arguments: Any) -> dict[str, Any]: ...

    async def stop(self, request_id: str) -> None: ...

    def abort(self, request_id: str) -> None: ...

    async def close(self) -> None: ...


OpenClient = Callable[[str], Awaitable[Client]]
"""Probes the server at an address and gives a client for it. Raises: EngineError."""
