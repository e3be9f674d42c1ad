"""Calls over the HTTP/2 connection, against a server that does frame by frame what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import grpc
import pytest

from engine import http2
from engine.connection import Connection
from engine.grpc_call import AT_ONCE, GrpcCall
from engine.grpc_wire import CallFailed, framed
from engine.http2 import ErrorCode, Setting
from engine.http2_connection import MAX_HEADER_BYTES
from engine.http2_stream import STREAM_WINDOW
from tests.engine.http2_peer import OK, Peer, Peers, listening
from tests.support.wait import LIMIT_S, until

ENDED_WELL = {"grpc-status": "0"}
HALF_WINDOW = STREAM_WINDOW // 2


@asynccontextmanager
async def connected(
    settings: Mapping[Setting, int] | None = None,
) -> AsyncIterator[tuple[Connection, Peer, Peers]]:
    async with listening() as (address, peers):
        connection = Connection(address)
        try:
            yield connection, await greeted(connection, peers, settings), peers
        finally:
            await connection.close()


async def greeted(connection: Connection, peers: Peers, settings: Mapping[Setting, int] | None = None) -> Peer:
    """The server's side of a new connection."""
    async with asyncio.TaskGroup() as group:
        group.create_task(connection.ready(LIMIT_S))
        peer = await peers.next()
        await peer.greet(settings)
    return peer


async def asked(connection: Connection, peer: Peer, message: bytes = b"?") -> tuple[GrpcCall, int]:
    """A call whose request has arrived, and the number of its stream."""
    call = await connection.stream_infer()
    async with asyncio.TaskGroup() as group:
        group.create_task(call.write(message, last=True))
        stream = await peer.request()
    return call, stream


async def read(call: GrpcCall) -> bytes | None:
    async with asyncio.timeout(LIMIT_S):
        return await call.read()


async def failure_of(call: GrpcCall) -> tuple[str, str]:
    with pytest.raises(CallFailed) as raised:
        await read(call)
    return raised.value.code().name, raised.value.details()


async def test_a_call_is_what_grpc_says_it_is() -> None:
    async with connected() as (connection, peer, _):
        call = await connection.stream_infer()
        async with asyncio.TaskGroup() as group:
            group.create_task(call.write(b"prompt", last=True))
            headers = dict(peer.decoder.decode((await peer.expect(http2.HEADERS)).payload))
            body = await peer.expect(http2.DATA)
        assert headers.pop(":authority").startswith("127.0.0.1:")
        assert headers == {
            ":method": "POST",
            ":scheme": "http",
            ":path": "/inference.GRPCInferenceService/ModelStreamInfer",
            "te": "trailers",
            "content-type": "application/grpc",
            "user-agent": "rollserve",
        }
        assert (body.flags, body.payload) == (http2.END_STREAM, b"\0\0\0\0\6prompt")


async def test_responses_come_however_their_bytes_are_cut() -> None:
    messages = [b"", b"one", b"x" * 40_000, b"four"]
    async with connected() as (connection, peer, _):
        call, stream = await asked(connection, peer)
        peer.answer(stream)
        joined = b"".join(map(framed, messages))
        for at in range(0, len(joined), 7_001):
            peer.data(stream, joined[at : at + 7_001])
        peer.answer(stream, ENDED_WELL, last=True)
        assert [await read(call) for _ in messages] == messages
        assert await read(call) is None


async def test_other_tasks_have_their_turn_while_there_is_much_to_read() -> None:
    async with connected() as (connection, peer, _):
        call, stream = await asked(connection, peer)
        peer.answer(stream)
        peer.data(stream, framed(b"x") * 4 * AT_ONCE)
        await peer.round_trip()
        read_by_turn: list[int] = []
        count = 0

        async def other() -> None:
            while count < 4 * AT_ONCE:
                read_by_turn.append(count)
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        for _ in range(4 * AT_ONCE):
            await call.read()
            count += 1
        await beside
        assert read_by_turn == [AT_ONCE, 2 * AT_ONCE, 3 * AT_ONCE]


async def test_padding_priority_and_continuation_are_read() -> None:
    async with connected() as (connection, peer, _):
        call, stream = await asked(connection, peer)
        block = peer.block(OK | {"x-more": "y" * 300})
        first = b"\2" + bytes(5) + block[:9] + b"\0\0"
        peer.send(
            http2.frame(http2.HEADERS, http2.PADDED | http2.HAS_PRIORITY, stream, first),
            http2.frame(http2.CONTINUATION, 0, stream, block[9:20]),
            http2.frame(http2.CONTINUATION, http2.END_HEADERS, stream, block[20:]),
            http2.frame(http2.DATA, http2.PADDED, stream, b"\3" + framed(b"padded") + b"\0\0\0"),
            http2.frame(0xFA, 0xFF, stream, b"of a kind that nobody knows"),
        )
        assert await read(call) == b"padded"


async def test_a_ping_is_answered_with_its_own_words() -> None:
    async with connected() as (_, peer, _):
        peer.send(http2.frame(http2.PING, 0, 0, b"8 bytes!"))
        answer = await peer.expect(http2.PING)
        assert (answer.flags, answer.payload) == (http2.ACK, b"8 bytes!")


async def test_a_request_is_sent_as_far_as_the_server_has_room_for_it() -> None:
    message = bytes(100_000)
    async with connected({Setting.INITIAL_WINDOW_SIZE: 1000}) as (connection, peer, _):
        call = await connection.stream_infer()
        sending = asyncio.create_task(call.write(message, last=True))
        stream = (await peer.expect(http2.HEADERS)).stream
        sizes = [len((await peer.expect(http2.DATA)).payload)]
        peer.send(http2.window_update(stream, 500))
        sizes.append(len((await peer.expect(http2.DATA)).payload))
        peer.send(http2.settings_frame({Setting.INITIAL_WINDOW_SIZE: 1700, Setting.MAX_FRAME_SIZE: 50_000}))
        await peer.expect(http2.SETTINGS)
        sizes.append(len((await peer.expect(http2.DATA)).payload))
        assert sizes == [1000, 500, 700]
        assert not sending.done()
        peer.send(http2.window_update(stream, 200_000), http2.window_update(0, 200_000))
        received = sum(sizes)
        while received < len(framed(message)):
            received += len((await peer.expect(http2.DATA)).payload)
        await sending


async def test_a_reader_that_does_not_read_stops_its_own_server_and_no_other() -> None:
    message = framed(bytes(HALF_WINDOW - 100))
    async with connected() as (connection, peer, _):
        lazy, one = await asked(connection, peer)
        busy, other = await asked(connection, peer)
        for stream in (one, other):
            peer.answer(stream)
            peer.data(stream, message + message)
        await peer.round_trip()
        for call, stream in ((busy, other), (lazy, one)):
            assert [len(await read(call) or b"") for _ in range(2)] == [HALF_WINDOW - 100] * 2
            granted = await peer.expect(http2.WINDOW_UPDATE)
            assert (granted.stream, int.from_bytes(granted.payload, "big")) == (stream, 2 * len(message))


async def test_a_message_may_be_larger_than_the_window() -> None:
    message = bytes(3 * STREAM_WINDOW)
    async with connected() as (connection, peer, _):
        call, stream = await asked(connection, peer)
        peer.answer(stream)
        rest, room = framed(message), STREAM_WINDOW
        while rest:
            peer.data(stream, rest[:room])
            rest = rest[room:]
            room = int.from_bytes((await peer.expect(http2.WINDOW_UPDATE)).payload, "big")
        assert await read(call) == message


@pytest.mark.parametrize(
    ("trailers", "expected"),
    [
        ({"grpc-status": "14", "grpc-message": "caf%C3%A9 is closed"}, ("UNAVAILABLE", "café is closed")),
        ({"grpc-status": "3"}, ("INVALID_ARGUMENT", "")),
        ({"grpc-status": "4711"}, ("UNKNOWN", "")),
        ({"grpc-status": "x"}, ("UNKNOWN", "")),
        ({"x": "y"}, ("UNKNOWN", "the server ended the call without a status")),
    ],
)
async def test_trailers_say_how_a_call_ended(trailers: dict[str, str], expected: tuple[str, str]) -> None:
    async with connected() as (connection, peer, _):
        call, stream = await asked(connection, peer)
        peer.answer(stream)
        peer.data(stream, framed(b"last"))
        peer.answer(stream, trailers, last=True)
        assert await read(call) == b"last"
        assert await failure_of(call) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (OK | {"grpc-status": "5", "grpc-message": "no such model"}, ("NOT_FOUND", "no such model")),
        ({":status": "503"}, ("UNAVAILABLE", "the server answered with HTTP status 503")),
        ({":status": "404"}, ("UNIMPLEMENTED", "the server answered with HTTP status 404")),
        ({":status": "200", "content-type": "text/html"}, ("UNKNOWN", "the server answered with text/html")),
    ],
)
@pytest.mark.parametrize("last", [True, False])
async def test_headers_alone_may_say_it(headers: dict[str, str], expected: tuple[str, str], last: bool) -> None:
    async with connected() as (connection, peer, _):
        call, stream = await asked(connection, peer)
        peer.answer(stream, headers, last=last)
        if not last and "grpc-status" in headers:
            peer.answer(stream, {"grpc-status": "5", "grpc-message": "no such model"}, last=True)
        assert await failure_of(call) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.REFUSED_STREAM, "UNAVAILABLE"),
        (ErrorCode.CANCEL, "CANCELLED"),
        (ErrorCode.ENHANCE_YOUR_CALM, "RESOURCE_EXHAUSTED"),
        (ErrorCode.PROTOCOL_ERROR, "INTERNAL"),
    ],
)
async def test_a_stream_that_is_reset_fails_behind_what_had_come(code: ErrorCode, expected: str) -> None:
    async with connected() as (connection, peer, _):
        call, stream = await asked(connection, peer)
        peer.answer(stream)
        peer.data(stream, framed(b"one"))
        peer.send(http2.reset(stream, code))
        assert await read(call) == b"one"
        assert (await failure_of(call))[0] == expected
        assert connection.losses == 0


async def test_an_answer_that_stops_inside_a_message_is_a_failure() -> None:
    async with connected() as (connection, peer, _):
        call, stream = await asked(connection, peer)
        peer.answer(stream)
        peer.data(stream, framed(b"whole")[:-1])
        peer.answer(stream, ENDED_WELL, last=True)
        assert (await failure_of(call))[0] == "INTERNAL"


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [(b"\1\0\0\0\1", "INTERNAL"), (b"\0\xff\xff\xff\xff", "RESOURCE_EXHAUSTED")],
)
async def test_a_message_that_nobody_can_take_ends_its_call(prefix: bytes, expected: str) -> None:
    async with connected() as (connection, peer, _):
        call, stream = await asked(connection, peer)
        peer.answer(stream)
        peer.data(stream, prefix + b"x")
        assert (await failure_of(call))[0] == expected
        reset = await peer.expect(http2.RST_STREAM)
        assert (reset.stream, int.from_bytes(reset.payload, "big")) == (stream, ErrorCode.CANCEL)


async def test_a_cancelled_call_is_reset_and_what_had_come_is_not_read() -> None:
    async with connected() as (connection, peer, _):
        call, stream = await asked(connection, peer)
        beside, other = await asked(connection, peer)
        peer.answer(stream)
        peer.data(stream, framed(b"one") + framed(b"two"))
        assert await read(call) == b"one"
        call.cancel()
        call.cancel()
        assert (await failure_of(call))[0] == "CANCELLED"
        assert (await peer.expect(http2.RST_STREAM)).stream == stream
        # What was under way when the server heard of it is let go of.
        peer.data(stream, framed(b"late"))
        peer.answer(stream, ENDED_WELL, last=True)
        peer.answer(other)
        peer.data(other, framed(b"beside"))
        assert await read(beside) == b"beside"


async def test_no_more_calls_at_once_than_the_server_allows() -> None:
    async with connected({Setting.MAX_CONCURRENT_STREAMS: 1}) as (connection, peer, _):
        first, one = await asked(connection, peer)
        second = asyncio.create_task(connection.stream_infer())
        await peer.round_trip()
        assert not second.done()
        peer.answer(one)
        peer.answer(one, ENDED_WELL, last=True)
        assert await read(first) is None
        assert (await peer.expect(http2.HEADERS)).stream == (await second)._stream.number  # type: ignore[union-attr]


async def test_a_server_that_goes_away_ends_what_it_did_not_look_at_and_answers_the_rest() -> None:
    async with connected() as (connection, peer, peers):
        call, stream = await asked(connection, peer)
        refused, _ = await asked(connection, peer)
        peer.answer(stream)
        peer.send(http2.frame(http2.GOAWAY, 0, 0, stream.to_bytes(4, "big") + bytes(4) + b"restart"))
        assert await failure_of(refused) == ("UNAVAILABLE", "the server is going away: restart")
        assert connection.losses == 1
        peer.data(stream, framed(b"still"))
        assert await read(call) == b"still"
        following = await greeted(connection, peers)
        again, number = await asked(connection, following)
        following.answer(number)
        following.data(number, framed(b"new"))
        assert await read(again) == b"new"
        peer.answer(stream, ENDED_WELL, last=True)
        assert await read(call) is None
        with pytest.raises(EOFError):
            await peer.expect(http2.PING)
        assert connection.losses == 1


async def test_a_lost_connection_fails_all_calls_behind_what_had_come() -> None:
    async with connected() as (connection, peer, _):
        call, stream = await asked(connection, peer)
        silent, _ = await asked(connection, peer)
        peer.answer(stream)
        peer.data(stream, framed(b"one"))
        await peer.close()
        assert await read(call) == b"one"
        for each in (call, silent):
            assert (await failure_of(each))[0] == "UNAVAILABLE"
        assert connection.losses == 1
        assert (await failure_of(await connection.stream_infer()))[0] == "UNAVAILABLE"


async def test_closing_it_fails_what_is_in_flight() -> None:
    async with connected() as (connection, peer, _):
        call, _ = await asked(connection, peer)
        await connection.close()
        assert await failure_of(call) == ("UNAVAILABLE", "the connection was closed on our side")
        assert (await peer.next()).kind == http2.GOAWAY
        assert connection.losses == 0


BROKEN = {
    "a frame that is too large": http2.frame(http2.DATA, 0, 1, b"")[3:].join([b"\x7f\xff\xff", b""]),
    "a stream that was never opened": http2.frame(http2.DATA, 0, 99, b"x"),
    "a push": http2.frame(http2.PUSH_PROMISE, http2.END_HEADERS, 1, bytes(4)),
    "an odd SETTINGS": http2.frame(http2.SETTINGS, 0, 0, b"x"),
    "a window too large": http2.settings_frame({Setting.INITIAL_WINDOW_SIZE: 2**31}),
    "all padding": http2.frame(http2.DATA, http2.PADDED, 1, b"\xff"),
    "headers that are none": http2.frame(http2.HEADERS, http2.END_HEADERS, 1, b"\xff\xff\xff\xff"),
    "a block that is not ended": http2.frame(http2.HEADERS, 0, 1, b"") + http2.frame(http2.PING, 0, 0, bytes(8)),
    "CONTINUATION of nothing": http2.frame(http2.CONTINUATION, http2.END_HEADERS, 1, b""),
    "a block without end": http2.frame(http2.HEADERS, 0, 1, b"")
    + http2.frame(http2.CONTINUATION, 0, 1, bytes(http2.MAX_FRAME)) * (MAX_HEADER_BYTES // http2.MAX_FRAME + 1),
}


@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN)
async def test_a_server_that_breaks_the_protocol_is_left(sent: bytes) -> None:
    async with connected() as (connection, peer, _):
        call, _ = await asked(connection, peer)
        peer.send(sent)
        code, details = await failure_of(call)
        assert code == grpc.StatusCode.UNAVAILABLE.name
        assert details.startswith("the server broke HTTP/2")
        await peer.expect(http2.GOAWAY)
        assert connection.losses == 1


async def test_a_write_waits_while_the_socket_is_full() -> None:
    size = 64 * 1024 * 1024
    async with connected({Setting.INITIAL_WINDOW_SIZE: http2.MAX_WINDOW}) as (connection, peer, _):
        peer.send(http2.window_update(0, size + 100))
        call = await connection.stream_infer()
        sending = asyncio.create_task(call.write(bytes(size), last=True))
        transport = connection._http2._transport  # type: ignore[union-attr]
        await until(lambda: transport.get_write_buffer_size() > 0)
        assert transport.get_write_buffer_size() < size // 8
        assert not sending.done()
        received = 0
        while received < size + 5:
            frame = await peer.next()
            received += len(frame.payload) if frame.kind == http2.DATA else 0
        await sending
