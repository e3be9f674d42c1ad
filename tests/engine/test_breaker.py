"""The circuit breaker: how it opens, how long it stays so, and how it closes."""

from __future__ import annotations

from engine.breaker import Breaker, BreakerState


def closed() -> Breaker:
    breaker = Breaker()
    breaker.close()
    return breaker


def test_an_endpoint_is_tried_before_it_is_used_and_at_once() -> None:
    breaker = Breaker()
    assert breaker.state is BreakerState.OPEN
    assert breaker.due_in(100.0) == 0


def test_it_opens_after_failures_in_a_row() -> None:
    breaker = closed()
    breaker.failed(0.0)
    breaker.failed(0.0)
    breaker.succeeded()
    breaker.failed(0.0)
    breaker.failed(0.0)
    assert breaker.state is BreakerState.CLOSED
    breaker.failed(0.0)
    assert breaker.state is BreakerState.OPEN


def test_it_opens_at_once_where_there_is_no_doubt() -> None:
    breaker = closed()
    breaker.failed(0.0, certain=True)
    assert breaker.state is BreakerState.OPEN


def test_pauses_double_up_to_the_longest() -> None:
    breaker = closed()
    pauses = []
    for _ in range(7):
        breaker.failed(10.0, certain=True)
        pauses.append(breaker.due_in(10.0))
        breaker.begin_trial()
        assert breaker.state is BreakerState.HALF_OPEN
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert breaker.due_in(12.0) == 3.0


def test_a_trial_that_went_well_closes_it_and_shortens_the_next_pause() -> None:
    breaker = closed()
    for _ in range(4):
        breaker.failed(0.0, certain=True)
    breaker.begin_trial()
    breaker.close()
    assert (breaker.state, breaker.epoch) == (BreakerState.CLOSED, 2)
    breaker.failed(0.0)
    assert breaker.state is BreakerState.CLOSED
    breaker.failed(0.0, certain=True)
    assert breaker.due_in(0.0) == 0.25


def test_failures_of_what_was_sent_before_it_opened_make_no_pause_longer() -> None:
    breaker = closed()
    for _ in range(20):
        breaker.failed(10.0)
    assert breaker.due_in(10.0) == 0.25


def test_it_is_reopened_for_a_trial_at_once() -> None:
    breaker = closed()
    breaker.reopen(7.0)
    assert (breaker.state, breaker.due_in(7.0)) == (BreakerState.OPEN, 0.0)
    breaker.begin_trial()
    breaker.failed(8.0)
    assert (breaker.state, breaker.due_in(8.0)) == (BreakerState.OPEN, 0.25)
