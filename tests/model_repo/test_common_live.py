"""Live requests: ids are unique among them, and both ways of cancelling mark the right one."""

from __future__ import annotations

import threading

import pytest
from common.generation import Generation
from common.live import CancelPoller, DuplicateRequest, LiveRequests

from tests.model_repo.doubles import FakeSender, make_request


def live_request(request_id: str, sender: FakeSender | None = None) -> Generation:
    request = make_request(request_id=request_id)
    return Generation(request, sender or FakeSender(), window=lambda: 0.0, log=None, on_end=lambda _: None)


def test_an_id_is_taken_until_its_request_ends() -> None:
    live = LiveRequests(lambda _: None)
    first, second = live_request("a"), live_request("a")
    live.add(first)
    with pytest.raises(DuplicateRequest, match="request id 'a' is live already"):
        live.add(second)
    assert len(live) == 1
    live.discard(second)  # never was in: the first must stay
    with pytest.raises(DuplicateRequest):
        live.add(second)
    live.discard(first)
    live.add(second)
    assert len(live) == 1


def test_requests_without_an_id_are_not_duplicates_and_an_empty_stop_hits_none() -> None:
    live = LiveRequests(lambda _: None)
    requests = [live_request(""), live_request("")]
    for request in requests:
        live.add(request)
    live.cancel("")
    assert not any(request.cancelled for request in requests)
    assert len(live) == 2


def test_stop_marks_the_request_of_that_id_and_tells_of_it() -> None:
    told: list[Generation] = []
    live = LiveRequests(told.append)
    one, other = live_request("one"), live_request("other")
    live.add(one)
    live.add(other)
    live.cancel("one")
    live.cancel("unknown")
    assert (one.cancelled, other.cancelled, told) == (True, False, [one])


def test_a_poll_marks_those_whose_client_is_gone_once() -> None:
    told: list[Generation] = []
    live = LiveRequests(told.append)
    gone, here = FakeSender(cancelled=True), FakeSender()
    one = live_request("", gone)
    live.add(one)
    live.add(live_request("b", here))
    live.poll()
    live.poll()
    assert told == [one]


def test_the_poller_finds_a_client_that_leaves_later_and_can_be_closed() -> None:
    marked = threading.Event()
    live = LiveRequests(lambda _: marked.set())
    sender = FakeSender()
    live.add(live_request("a", sender))
    poller = CancelPoller(live)
    poller.start()
    sender.cancelled = True
    assert marked.wait(20)
    poller.close()
