"""The deadline, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from engine.deadline import Deadline


@dataclass
class Timer:
    at_s: float
    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Clock:
    """Stands for the event loop, as far as it is used."""

    now_s: float = 0.0
    timers: list[Timer] = field(default_factory=list)

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now_s + delay_s, callback))
        return self.timers[-1]

    def due(self, until_s: float) -> list[Timer]:
        return [timer for timer in self.timers if timer.at_s <= until_s and not timer.cancelled]

    def move_to(self, until_s: float) -> None:
        """Run what is due on the way, in order."""
        while due := self.due(until_s):
            timer = min(due, key=lambda timer: timer.at_s)
            self.timers.remove(timer)
            self.now_s = timer.at_s
            timer.callback()
        self.now_s = until_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    return clock


@pytest.fixture
def given_up() -> list[float]:
    """When it was given up."""
    return []


@pytest.fixture
def deadline(clock: Clock, given_up: list[float]) -> Deadline:
    return Deadline(lambda: given_up.append(clock.now_s))


def test_a_wait_past_its_limit_is_given_up_once(clock: Clock, deadline: Deadline, given_up: list[float]) -> None:
    with deadline.of(10):
        clock.move_to(9.9)
        assert given_up == []
        clock.move_to(100)
    assert given_up == [10]
    assert deadline.passed


def test_each_wait_has_the_whole_limit(clock: Clock, deadline: Deadline, given_up: list[float]) -> None:
    for start in range(0, 50, 5):
        with deadline.of(10):
            clock.move_to(start + 5)
    assert given_up == []
    with deadline.of(10):
        clock.move_to(60.5)
    assert given_up == [60]


def test_time_between_waits_does_not_count(clock: Clock, deadline: Deadline, given_up: list[float]) -> None:
    with deadline.of(10):
        clock.move_to(1)
    clock.move_to(95)
    assert given_up == []
    with deadline.of(10):
        clock.move_to(104)
        assert given_up == []
        clock.move_to(106)
    assert given_up == [105]


@pytest.mark.parametrize(("first", "second"), [(600, 10), (10, 600)])
def test_another_limit_holds_from_its_wait_on(
    first: float, second: float, clock: Clock, deadline: Deadline, given_up: list[float]
) -> None:
    with deadline.of(first):
        clock.move_to(5)
    with deadline.of(second):
        clock.move_to(1000)
    assert given_up == [5 + second]


def test_many_waits_set_few_timers(clock: Clock, deadline: Deadline) -> None:
    for moment in range(1000):
        with deadline.of(100):
            clock.move_to(moment / 1000)
    assert len(clock.timers) == 1


def test_closed_it_never_fires(clock: Clock, deadline: Deadline, given_up: list[float]) -> None:
    with deadline.of(10):
        deadline.close()
        clock.move_to(100)
    assert given_up == []
