"""Waiting for a state, not for a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

LIMIT_S = 20.0
"""Far more than any state here takes; reaching it fails the test."""


async def until(condition: Callable[[], Any]) -> None:
    """Give other tasks the loop until ``condition()`` is true. Raises: TimeoutError."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - any state of the server, which has no event for it
            await asyncio.sleep(0.001)
