"""Numbered events: read from any number, followed live, bounded; nothing that a holding reader has not taken is let go of."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.buffer import PIECE_OVERHEAD, EventBuffer, EventsLost, events_of
from tests.support.wait import until

ALL = 10**9


def event(number: int, size: int = 0) -> bytes:
    return b"data: %d%s\n\n" % (number, b"x" * size)


def filled(count: int, keep_bytes: int | None = None, size: int = 0) -> EventBuffer:
    buffer = EventBuffer(keep_bytes)
    for number in range(count):
        buffer.append(event(number, size))
    return buffer


def read(buffer: EventBuffer, start: int) -> bytes:
    with buffer.reader(start) as reader:
        return reader.take(ALL)


@given(st.lists(st.integers(1, 4), max_size=12), st.data())
def test_reading_from_any_number_gives_the_rest(sizes: list[int], data: st.DataObject) -> None:
    buffer = EventBuffer()
    total = 0
    for size in sizes:
        buffer.append(b"".join(event(total + place) for place in range(size)))
        total += size
    assert buffer.end == total
    start = data.draw(st.integers(0, total))
    assert read(buffer, start) == b"".join(event(number) for number in range(start, total))
    with buffer.reader(start) as reader:
        one_by_one = []
        while events := reader.take_events(data.draw(st.integers(1, 40))):
            one_by_one += events
        assert one_by_one == [event(number) for number in range(start, total)]


@given(st.integers(1, 30), st.integers(1, 200))
def test_a_take_is_bounded_and_nothing_is_lost_between_takes(count: int, limit: int) -> None:
    buffer = filled(count)
    longest = max(len(event(number)) for number in range(count))
    taken = []
    with buffer.reader() as reader:
        while piece := reader.take(limit):
            taken.append(piece)
    assert all(len(piece) < limit + longest for piece in taken)
    assert b"".join(taken) == b"".join(event(number) for number in range(count))


def test_a_body_without_a_blank_line_is_one_event() -> None:
    buffer = EventBuffer()
    buffer.append(b'{"whole":true}')
    assert buffer.end == 1
    with buffer.reader() as reader:
        assert reader.take_events(ALL) == [b'{"whole":true}']


def test_events_are_cut_at_blank_lines() -> None:
    assert events_of(b"event: a\ndata: 1\n\ndata: 2\n\n") == [b"event: a\ndata: 1\n\n", b"data: 2\n\n"]


def test_an_empty_piece_is_no_event() -> None:
    buffer = filled(1)
    buffer.append(b"")
    assert buffer.end == 1


def test_the_oldest_go_first_and_numbers_stay() -> None:
    buffer = filled(100, keep_bytes=20 * (PIECE_OVERHEAD + 20))
    assert 0 < buffer.first < 100
    assert buffer.size <= 20 * (PIECE_OVERHEAD + 20)
    assert read(buffer, buffer.first) == b"".join(event(number) for number in range(buffer.first, 100))
    with pytest.raises(EventsLost) as lost:
        read(buffer, buffer.first - 1)
    assert lost.value.first == buffer.first


def test_the_newest_piece_is_kept_however_large() -> None:
    buffer = filled(3, keep_bytes=1024, size=5000)
    assert buffer.first == 2
    assert read(buffer, 2) == event(2, 5000)


def test_pieces_are_bounded_too() -> None:
    assert filled(10_000, keep_bytes=100_000).first > 9000


def test_a_reader_that_holds_loses_nothing() -> None:
    buffer = EventBuffer(1024)
    with buffer.reader(holds=True) as reader:
        for number in range(100):
            buffer.append(event(number, 100))
        assert buffer.first == 0
        assert buffer.held
        first = reader.take(1)
        rest = reader.take(ALL)
        assert first + rest == b"".join(event(number, 100) for number in range(100))
        assert buffer.first > 90
    assert not buffer.held


def test_one_that_does_not_hold_falls_out_while_another_reads_on() -> None:
    buffer = EventBuffer(1024)
    with buffer.reader() as observer, buffer.reader(holds=True) as holder:
        for number in range(100):
            buffer.append(event(number, 100))
            holder.take(ALL)
        with pytest.raises(EventsLost):
            observer.take(ALL)


def test_after_clear_nothing_is_there_but_numbers_go_on() -> None:
    buffer = filled(5)
    buffer.clear()
    with pytest.raises(EventsLost):
        read(buffer, 4)
    buffer.append(event(5))
    assert (buffer.first, buffer.end, read(buffer, 5)) == (5, 6, event(5))


async def test_a_reader_wakes_for_what_comes_for_the_end_and_for_a_nudge() -> None:
    buffer = EventBuffer()
    with buffer.reader() as reader:
        for wake, ready in (
            (reader.wake, False),
            (lambda: buffer.append(event(0)), True),
            (buffer.close, True),
        ):
            waiting = asyncio.create_task(reader.more())
            await until(lambda: reader._waiting is not None)
            assert not waiting.done()
            wake()
            assert await waiting is ready
            reader.take(ALL)
        assert reader.at_end
        assert await reader.more()


async def test_waiting_for_a_later_event() -> None:
    buffer = filled(1)
    with buffer.reader() as reader:
        waiting = asyncio.create_task(reader.more(1))
        await until(lambda: reader._waiting is not None)
        buffer.append(event(1))
        assert await waiting
        assert reader.position == 0


async def test_a_reader_that_was_cancelled_can_wait_again() -> None:
    buffer = EventBuffer()
    with buffer.reader() as reader:
        waiting = asyncio.create_task(reader.more())
        await until(lambda: reader._waiting is not None)
        waiting.cancel()
        await asyncio.wait({waiting})
        buffer.append(event(0))
        assert await reader.more()
