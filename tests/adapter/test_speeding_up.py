"""When a server changes over to the cheaper tokenizer."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from adapter.speeding_up import speeding_up


class Told:
    """An encoder that knows when it was told."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.was = asyncio.Event()

    def describe(self) -> str:
        return "{}"

    def speed_up(self) -> str | None:
        self.loop.call_soon_threadsafe(self.was.set)
        return None


async def test_every_model_changes_over_once_the_time_has_come() -> None:
    encoders = {"a": Told(), "b": Told()}
    with speeding_up(cast(Any, encoders), after_s=0.0):
        for encoder in encoders.values():
            await asyncio.wait_for(encoder.was.wait(), 60)


async def test_a_server_that_is_gone_before_changes_nothing() -> None:
    encoder = Told()
    with speeding_up(cast(Any, {"a": encoder}), after_s=0.0):
        pass
    for _ in range(3):
        await asyncio.sleep(0)
    assert not encoder.was.is_set()
