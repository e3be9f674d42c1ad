"""How long a client that was turned away is told to stay away."""

from __future__ import annotations

import asyncio

import pytest

from adapter import admission
from adapter.admission import Admission
from adapter.errors import TooManyRequests
from tests.support.wait import until


class Clock:
    """``time.monotonic``, moved by hand."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("held_s", "queued", "told_s"),
    [(0.0, 1, 1.0), (4.0, 1, 4.0), (4.0, 3, 8.0), (400.0, 3, 60.0)],
    ids=["at once", "one in the queue", "three in the queue", "never too long"],
)
async def test_it_is_what_those_before_it_need(
    monkeypatch: pytest.MonkeyPatch, held_s: float, queued: int, told_s: float
) -> None:
    """Two places. Those who had them kept them for ``held_s``, often enough for the mean to be that."""
    clock = Clock()
    monkeypatch.setattr(admission, "time", clock)
    places = Admission(2, queued, 60)
    for _ in range(100):
        async with places.places():
            clock.now += held_s
    async with places.places(), places.places():
        waiting = [asyncio.create_task(wait_for_a_place(places)) for _ in range(queued)]
        await until(lambda: places.queued == queued)
        with pytest.raises(TooManyRequests) as caught:
            await wait_for_a_place(places)
    assert caught.value.retry_after == told_s
    await asyncio.gather(*waiting)


async def wait_for_a_place(places: Admission) -> None:
    async with places.places():
        pass
