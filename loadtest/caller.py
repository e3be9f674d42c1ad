"""One session's HTTP: a plain ``http.client`` connection for each request, because it must be read as bytes come and can be reset.

Under Locust its socket is gevent's. Nothing is sent again here but what was answered with 429 or 503.
"""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from typing import Any
from urllib.parse import urlsplit

from loadtest.recording import Recording, TurnRecord
from loadtest.speech import BadReply, Conversation, SseReader

TIMEOUT_S = 300.0
"""Without a byte."""
TRIES = 6
PAUSE_S = 0.5
"""Before a request is sent again, times two each time; Retry-After goes before it."""
READ_BYTES = 65536


class Failed(Exception):
    """A request did not end well, for all its tries."""


class Left(Exception):
    """The client went away, as it was told to."""


class Caller:
    """``url`` is the server's base; turns go to the session's own URL, unless the server has no sessions."""

    def __init__(self, url: str, sid: str, recording: Recording) -> None:
        self._address, self._sid, self.recording = urlsplit(url), sid, recording

    def control(self, name: str, path: str, body: Any) -> bytes:
        """A request of the control API, timed as ``name``; gives the answer. Raises: Failed."""
        began = time.monotonic()
        connection = self._connect()
        try:
            connection.request("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            data = answer.read()
            error = None if answer.status < 300 else f"{answer.status} {data[:200]!r}"
        except (OSError, http.client.HTTPException) as problem:
            data, error = b"", f"{type(problem).__name__}: {problem}"
        finally:
            connection.close()
        self.recording.session(name, (time.monotonic() - began) * 1000, error)
        if error:
            raise Failed(error)
        return data

    def reply(self, conversation: Conversation, prefix: str, *, leave_after: int | None = None, retry: int = 0) -> int:
        """The conversation's next reply, read to its end; gives the server's number of the turn, 0 if it has none.

        ``leave_after`` so many pieces of output the connection is reset: Left. Raises: Failed, Left.
        """
        body = json.dumps(conversation.body()).encode()
        for attempt in range(TRIES):
            record = TurnRecord(conversation.protocol, at=time.time())
            wait = PAUSE_S * 2**attempt
            try:
                return self._try(conversation, prefix, body, record, leave_after, retry + attempt)
            except _Busy as busy:
                wait = busy.wait_s or wait
                record.error = str(busy)
            except (OSError, http.client.HTTPException, BadReply, ValueError) as problem:
                record.error = f"{type(problem).__name__}: {problem}"[:300]
            finally:
                self.recording.turn(record)
            time.sleep(wait)
        raise Failed(record.error)

    def _try(
        self,
        conversation: Conversation,
        prefix: str,
        body: bytes,
        record: TurnRecord,
        leave_after: int | None,
        retry: int,
    ) -> int:
        conversation.begin()
        began = time.monotonic()
        headers = {"Content-Type": "application/json", "x-api-key": "unused", "session-id": self._sid}
        headers |= {"x-stainless-retry-count": str(retry)} if retry else {}
        connection = self._connect()
        try:
            connection.request("POST", prefix + conversation.path, body, headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise _Busy(answer.status, answer.read()[:200], answer.getheader("Retry-After"))
            self._read(answer, conversation, record, began, leave_after)
            return int(answer.getheader("x-rollserve-turn", "0"))
        except Left:
            _reset(connection)
            raise
        finally:
            record.turn_ms = (time.monotonic() - began) * 1000
            record.output_tokens = conversation.output_tokens
            connection.close()

    def _read(
        self,
        answer: http.client.HTTPResponse,
        conversation: Conversation,
        record: TurnRecord,
        began: float,
        leave_after: int | None,
    ) -> None:
        reader, last = SseReader(), began
        while data := answer.read1(READ_BYTES):
            carried = [conversation.take(event) for event in reader.feed(data)]
            if not any(carried):
                continue
            now = time.monotonic()
            if record.pieces:
                record.gap_ms = max(record.gap_ms, (now - last) * 1000)
            else:
                record.ttft_ms = (now - began) * 1000
            record.pieces, last = record.pieces + 1, now
            if leave_after is not None and record.pieces >= leave_after and not conversation.complete:
                record.left = True
                raise Left
        if not conversation.complete:
            raise BadReply("the stream ended before the reply")

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._address.scheme == "https" else http.client.HTTPConnection
        return kind(self._address.hostname or "", self._address.port, timeout=TIMEOUT_S)


class _Busy(Exception):
    """An answer other than 200. ``wait_s`` is what it asks for."""

    def __init__(self, status: int, body: bytes, retry_after: str | None) -> None:
        super().__init__(f"{status} {body!r}")
        self.wait_s = float(retry_after) if retry_after and retry_after.isdigit() else None


def _reset(connection: http.client.HTTPConnection) -> None:
    if connection.sock is not None:
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
