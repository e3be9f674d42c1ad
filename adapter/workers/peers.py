"""What one worker tells all the others, by their own URLs: ``adapter.holding.Peers``.

A call takes the secret that the workers of this start share, and the admin key where access keys are on. There are a few in an
update, so each has a connection of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from adapter.holding import NOT_REACHED, PeerAnswer
from adapter.workers.forwarding import FORWARDED

CONNECT_S = 2.0
"""All workers are on this machine."""


@dataclass(frozen=True, slots=True)
class OtherWorkers:
    """``urls`` by slot; ``slot`` is this worker's own."""

    slot: int
    urls: Sequence[str]
    secret: str = field(repr=False)
    admin_key: str | None = field(default=None, repr=False)

    async def tell(self, operation: str, body: Mapping[str, Any], timeout_s: float) -> list[PeerAnswer]:
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
        headers = {FORWARDED: self.secret}
        if self.admin_key is not None:
            headers["Authorization"] = f"Bearer {self.admin_key}"
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as http:
            others = [slot for slot in range(len(self.urls)) if slot != self.slot]
            return list(await asyncio.gather(*(self._ask(http, slot, operation, body) for slot in others)))

    async def _ask(self, http: aiohttp.ClientSession, slot: int, operation: str, body: Mapping[str, Any]) -> PeerAnswer:
        try:
            async with http.post(f"{self.urls[slot]}/v1/engine/workers/{operation}", json=body) as response:
                return PeerAnswer(slot, response.status, await response.json())
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return PeerAnswer(slot, NOT_REACHED, {})
