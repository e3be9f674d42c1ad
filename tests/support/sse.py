"""Server-sent events as a client reads them."""

from __future__ import annotations

import json
from typing import Any

import aiohttp


def events_of(raw: bytes) -> list[tuple[str | None, Any]]:
    """``(event name, data)`` of every complete event; comments are left out."""
    events = []
    for block in raw.decode().split("\n\n")[:-1]:
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
        data = "\n".join(line.removeprefix("data: ") for line in lines if line.startswith("data: "))
        if data:
            events.append((names[0] if names else None, json.loads(data) if data != "[DONE]" else data))
    return events


def data_objects(raw: bytes) -> list[Any]:
    return [data for _, data in events_of(raw)]


async def read_until(response: aiohttp.ClientResponse, text: str) -> bytes:
    """What came up to ``text``, and what came with it. Fails if the response ends before."""
    seen = b""
    while text.encode() not in seen:
        chunk = await response.content.readany()
        assert chunk, seen
        seen += chunk
    return seen
