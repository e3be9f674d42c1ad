"""Replies that are kept to be read again: by number, for a time, within bounds; what a client still reads stays."""

from __future__ import annotations

import pytest

from adapter.buffer import PIECE_OVERHEAD
from adapter.errors import Gone, NotFound
from adapter.replies import REPLY_OVERHEAD, ReplayBudget, ReplyBook
from adapter.reply import LiveReply

PLENTY = 10**9
SIZE = 1000
COST = SIZE + len("data: \n\n") + PIECE_OVERHEAD + REPLY_OVERHEAD
"""Bytes that a reply of ``SIZE`` takes."""


def started(book: ReplyBook, wire_id: str | None = None, route: str = "r") -> LiveReply:
    reply = LiveReply(route, {"asked": wire_id})
    reply.wire_id = wire_id
    book.add(reply)
    reply.begin({})
    return reply


def ended(book: ReplyBook, size: int = SIZE, wire_id: str | None = None, route: str = "r") -> LiveReply:
    reply = started(book, wire_id, route)
    reply.commit(b"data: " + b"x" * size + b"\n\n")
    reply.delivered()
    return reply


def kept(book: ReplyBook, count: int) -> list[int]:
    """Which of the replies 1 to ``count`` can be read."""
    found = []
    for number in range(1, count + 1):
        try:
            found.append(book.get(number).number)
        except Gone:
            continue
    return found


def test_replies_are_counted_and_told_apart_from_those_that_never_were() -> None:
    book = ReplyBook(ReplayBudget(PLENTY, keep_s=0.0), PLENTY)
    running = started(book)
    assert book.get(1) is running
    ended(book)
    with pytest.raises(Gone):
        book.get(2)
    for number in (0, 3):
        with pytest.raises(NotFound):
            book.get(number)


def test_a_session_keeps_its_newest_replies() -> None:
    book = ReplyBook(ReplayBudget(PLENTY, PLENTY), session_bytes=4 * COST)
    for _ in range(20):
        ended(book)
    assert kept(book, 20) == [17, 18, 19, 20]


def test_all_sessions_together_keep_the_newest_replies() -> None:
    budget = ReplayBudget(total_bytes=4 * COST, keep_s=PLENTY)
    books = [ReplyBook(budget, PLENTY) for _ in range(2)]
    for _ in range(5):
        for book in books:
            ended(book)
    assert [kept(book, 5) for book in books] == [[4, 5], [4, 5]]
    assert budget.size <= 4 * COST


def test_a_reply_that_is_being_read_stays_and_goes_when_it_was_read() -> None:
    budget = ReplayBudget(PLENTY, keep_s=0.0)
    book = ReplyBook(budget, session_bytes=0)
    reply = started(book)
    with reply.reader() as reader:
        reply.commit(b"data: 1\n\n")
        book.close()
        assert book.get(1) is reply
        assert reader.take(100) == b"data: 1\n\n"
    budget.sweep()
    assert kept(book, 1) == []
    assert budget.size == 0


def test_nothing_is_left_of_a_session_that_is_over() -> None:
    budget = ReplayBudget(PLENTY, PLENTY)
    book = ReplyBook(budget, PLENTY)
    replies = [ended(book, wire_id=f"w{number}") for number in range(3)]
    book.close()
    assert kept(book, 3) == []
    assert budget.size == 0
    assert book.by_wire_id("w1") is None
    assert all(reply.events.size == 0 and reply.body is None for reply in replies)


def test_by_the_protocols_own_id_and_the_latest_of_a_protocol() -> None:
    book = ReplyBook(ReplayBudget(PLENTY, PLENTY), session_bytes=COST)
    first, second = ended(book, wire_id="w1"), ended(book, wire_id="w2", route="other")
    assert book.by_wire_id("w2") is second
    assert book.by_wire_id("w1") is None  # the session keeps one of them
    assert first.events.size == 0
    assert book.latest("other") is second
    assert book.latest("r") is None


def test_a_request_is_forgotten_with_its_delivery() -> None:
    book = ReplyBook(ReplayBudget(PLENTY, PLENTY), PLENTY)
    reply = started(book, "w")
    body = {"asked": "w"}
    assert book.find("r", body, None, is_retry=True) is reply
    reply.commit(b"data: 1\n\n")
    assert book.find("r", body, None, is_retry=False) is reply
    reply.delivered()
    assert reply.body is None
    assert book.find("r", body, None, is_retry=True) is None
    assert book.get(1) is reply


def test_a_reply_whose_beginning_is_gone_is_not_given_again() -> None:
    book = ReplyBook(ReplayBudget(PLENTY, PLENTY), PLENTY)
    reply = LiveReply("r", {}, keep_bytes=1024)
    book.add(reply)
    reply.begin({})
    for _ in range(20):
        reply.append(b"data: " + b"x" * 100 + b"\n\n")
    assert reply.events.first > 0
    assert book.find("r", {}, None, is_retry=True) is None
