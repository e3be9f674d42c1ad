"""Reading along: the events of one reply, and the live feed of a session, for observers.

GET /v1/sessions/SID/replies/NUMBER/events    a reply's own wire events, from its beginning
GET /v1/sessions/SID/events                   what all turns of a session say, as they say it

Every event has its number as ``id:``, so a client that lost its connection goes on behind ``Last-Event-ID`` (or, where it cannot
set a header, ``?starting_after=NUMBER``). What is no longer kept is answered with 410 before the headers; who falls out of what is
kept while reading is told by an error event, and the connection is cut. Observers have no say in how long a reply lives.
"""

from __future__ import annotations

from collections.abc import Callable

import orjson
from aiohttp import web

from adapter.buffer import BLANK_LINE, EventsLost, Reader
from adapter.errors import AdapterError, BadRequest, Gone
from adapter.http.failures import control_error
from adapter.http.session_name import SID
from adapter.http.state import STATE
from adapter.http.stream import WRITE_BYTES, Connection
from adapter.jsontext import dump_json
from adapter.protocols.seed_events import COMMENT, failed_response


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get(f"/v1/sessions/{SID}/events", session_events)
    router.add_get(f"/v1/sessions/{SID}/replies/{{reply}}/events", reply_events)


async def reply_events(request: web.Request) -> web.StreamResponse:
    """``GET /v1/sessions/SID/replies/NUMBER/events``. A reply that failed ends with its error event, and is cut."""
    session = request.app[STATE].sessions.find(request.match_info["sid"])
    reply = session.replies.get(_number(request.match_info["reply"], "reply"))
    after = last_event_id(request)
    start = 0 if after is None else after + 1
    if start < reply.events.first:
        raise Gone(f"events before {reply.events.first} of this reply are no longer kept")

    def lost(error: AdapterError) -> bytes:
        return reply.error_event(error) or _data(orjson.dumps(control_error(error)))

    with reply.observer(start) as reader:
        return await _follow(request, reader, lost, failed=lambda: reply.error is not None)


async def session_events(request: web.Request) -> web.StreamResponse:
    """``GET /v1/sessions/SID/events``: ends when the session is finished or dropped."""
    session = request.app[STATE].sessions.find(request.match_info["sid"])
    with session.feed.follow(last_event_id(request)) as reader:
        return await _follow(request, reader, lambda error: _data(dump_json(failed_response(error))))


def last_event_id(request: web.Request) -> int | None:
    """The number of the last event that the client has. Raises: BadRequest."""
    header = request.headers.get("Last-Event-ID")
    given = header if header else request.query.get("starting_after")
    return None if given is None else _number(given, "Last-Event-ID" if header else "starting_after")


async def _follow(
    request: web.Request,
    reader: Reader,
    lost: Callable[[AdapterError], bytes],
    failed: Callable[[], bool] = lambda: False,
) -> web.StreamResponse:
    """Write numbered events until their end. One that ``failed``, or that the reader fell out of, does not look complete."""
    async with Connection(request, request.app[STATE].services.config, {}, reader.wake) as connection:
        await connection.write(COMMENT)  # the headers leave with the first byte
        try:
            await _write_events(connection, reader)
        except EventsLost as fallen:
            await connection.write(lost(Gone(f"{fallen}: this reader was too slow")))
            connection.cut()
            return connection.response
        if failed():
            connection.cut()
        else:
            await connection.end()
        return connection.response


async def _write_events(connection: Connection, reader: Reader) -> None:
    """Raises: EventsLost."""
    while not reader.at_end:
        number = reader.position
        events = reader.take_events(WRITE_BYTES)
        if events:
            await connection.write(b"".join(_numbered(number + place, event) for place, event in enumerate(events)))
        elif not await reader.more():
            await connection.write(COMMENT)


def _numbered(number: int, event: bytes) -> bytes:
    """A body that is no event of a stream becomes one."""
    return b"id: %d\n%b" % (number, event if event.endswith(BLANK_LINE) else _data(event))


def _data(body: bytes) -> bytes:
    return b"data: " + body + BLANK_LINE


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise BadRequest(f"{name} must be a number", field=name)
    return int(text)
