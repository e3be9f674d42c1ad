"""The stored responses of one session: what OpenAI Responses lets a client come back to.

A stored response is its input items, its response object as it stands, and the reply that makes it. Later requests go on from it
(``previous_response_id``), refer to its items, read it again or cancel it. It is part of its session and goes away with it.

**Recorded.** What is stored is written down in the frame of the turn that makes it (``records.ResponseRecord``), and is there again
when the session is rebuilt, in the same order and under the same bounds. A background response that ends without a turn has a
frame of its own. One that still runs when the process dies is gone.

**Held once.** Input items are chains of JSON texts that responses share (``items``): those of the response that a request goes on
from, or of the one whose input its own begins with. Only what is new is held, and written down.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from adapter.buffer import events_of
from adapter.errors import AdapterError, BadRequest, PreviousResponseNotFound
from adapter.items import Item, ItemBytes, Items, followed_by, shared
from adapter.jsontext import dump_json, load_exact
from adapter.records import Place, ResponseRecord
from adapter.reply import LiveReply, ReplyState

MAX_RESPONSES = 64
"""Stored responses per session. A client goes on from its last one, or from one of a few where it branches."""

MAX_BYTES = 2 * 1024 * 1024
"""Bytes of JSON that a session's stored responses may take, each with what it adds; the oldest go first, the newest stays whatever
its size. That is about four histories of 128k tokens."""

RESPONSE_BYTES = 1_000
"""What a stored response takes in memory beside its texts, about."""

Describe = Callable[[str, AdapterError | None], dict[str, Any]]
"""The response object of a reply without output, by its status and error."""

Record = Callable[[ResponseRecord], None]
"""Writes down a response that ended without a turn, as far as that can be."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request whose input holds the whole conversation: its ``own`` items behind what was kept ``earlier``."""

    body: dict[str, Any]
    own: list[Any]
    earlier: Items | None = None
    after: Place | None = None
    """Where what was kept ends."""


@dataclass(slots=True)
class StoredResponse:
    """One response. ``body`` is None as long as its reply is open, then the response object as JSON."""

    reply: LiveReply | None
    """None where it ended in an earlier process, and its events with it."""
    streamed: bool
    background: bool
    input: Items
    """The items before the reply."""
    after: Place | None
    """Where in the store those are that its own come after."""
    describe: Describe | None
    """None once it has a body."""
    body: bytes | None = None
    complete: bool = False
    """Whether a conversation can go on from it."""
    made: bytes | None = None
    """The response object of a turn that is recorded, though perhaps not on the disk yet."""

    @property
    def size(self) -> int:
        """Bytes of JSON that it adds to what is stored."""
        return len(self.input.text) + len(self.body or b"")

    def current_body(self) -> bytes:
        """The response object as it stands."""
        return self.body if self.body is not None else self._described("in_progress", None)

    def input_items(self) -> list[Item]:
        return self.input.read()

    def output_items(self) -> list[Item]:
        output: list[Item] = load_exact(self.current_body())["output"]
        return output

    def conversation(self) -> Items:
        """All items up to the end of this response."""
        return followed_by(self.input, self.output_items())

    def end(self, reply: LiveReply) -> None:
        """The reply has ended, with the object that was made of it or without."""
        self.complete = reply.state in (ReplyState.COMMITTED, ReplyState.DELIVERED)
        if self.complete:
            self.body = self.made
        else:
            cancelled = reply.state is ReplyState.CANCELLED
            self.body = self._described("cancelled", None) if cancelled else self._described("failed", reply.error)
        self.describe = self.made = None

    def record(self, response_id: str, body: bytes, *, complete: bool) -> ResponseRecord:
        """As it is written down."""
        return ResponseRecord(response_id, self.after, self.streamed, self.background, complete, self.input.text, body)

    def _described(self, status: str, error: AdapterError | None) -> bytes:
        assert self.describe is not None
        return dump_json(self.describe(status, error))


@dataclass(slots=True)
class ResponseStore:
    """By id, oldest first."""

    _stored: OrderedDict[str, StoredResponse] = field(default_factory=OrderedDict)
    _inputs: dict[bytes, str] = field(default_factory=dict)
    """The response with this input, by its digest: those that are recorded, the last one of several."""
    _bytes: ItemBytes = field(default_factory=ItemBytes)
    _bodies: int = 0

    @property
    def size(self) -> int:
        """Bytes that all of it takes in memory, about; texts that only responses before these brought are counted too."""
        return self._bytes.size + self._bodies + RESPONSE_BYTES * len(self._stored)

    def add(
        self,
        response_id: str,
        conversation: Conversation,
        reply: LiveReply,
        describe: Describe,
        *,
        streamed: bool,
        record: Record,
    ) -> None:
        """A response whose reply is about to be made: nothing of it has happened yet."""
        items, known = shared(conversation.earlier, conversation.own, self._known)
        after = conversation.after if known is None else Place(self._inputs[known.digest], output=False)
        response = StoredResponse(reply, streamed, reply.background, items, after, describe)
        self._take(response_id, response)
        reply.on_commit = lambda end: self._committed(response_id, response, end)
        # First of all: others may let go of the reply.
        reply.on_end.insert(0, lambda ended: self._ended(response_id, response, ended, record))

    def get(self, response_id: str) -> StoredResponse | None:
        return self._stored.get(response_id)

    def delete(self, response_id: str) -> None:
        response = self._stored.pop(response_id, None)
        if response is None:
            return
        self._bytes.let_go(response.input)
        self._bodies -= len(response.body or b"")
        if self._inputs.get(response.input.digest) == response_id:
            del self._inputs[response.input.digest]

    def restore(self, response_id: str, response: StoredResponse) -> None:
        """One of an earlier process, recorded behind those that are here."""
        self._take(response_id, response)
        self._bodies += len(response.body or b"")
        self._index(response_id, response)

    def completed(self, body: Mapping[str, Any]) -> Conversation:
        """``body`` with what it goes on from before its own input, and items in place of references.

        What is malformed stays for the protocol to refuse. Raises: PreviousResponseNotFound, BadRequest.
        """
        own = self._own_items(body.get("input"))
        if own is None:
            return Conversation(dict(body), [])
        previous = body.get("previous_response_id")
        if not isinstance(previous, str):
            return Conversation({**body, "input": own}, own)
        earlier = self._conversation(previous)
        items = earlier.read() + own
        return Conversation({**body, "input": items}, own, earlier, Place(previous, output=True))

    def _conversation(self, previous: str) -> Items:
        response = self._stored.get(previous)
        if response is None:
            raise PreviousResponseNotFound(previous)
        if not response.complete:
            raise BadRequest("has no output to go on from", field="previous_response_id")
        return response.conversation()

    def _own_items(self, value: Any) -> list[Any] | None:
        if isinstance(value, str):
            return [{"type": "message", "role": "user", "content": value}] if value else None
        if not isinstance(value, list):
            return None
        if not any(map(_is_reference, value)):
            return value
        known = {item["id"]: item for item in self._items() if isinstance(item.get("id"), str)}
        return [known.get(item["id"], item) if _is_reference(item) else item for item in value]

    def _items(self) -> Iterator[Item]:
        for response in self._stored.values():
            yield from response.input_items()
            yield from response.output_items()

    def _known(self, digest: bytes) -> Items | None:
        response_id = self._inputs.get(digest)
        return None if response_id is None else self._stored[response_id].input

    def _committed(self, response_id: str, response: StoredResponse, end: bytes) -> ResponseRecord | None:
        """Its turn is about to be recorded; ``end`` is the last that goes on the wire. None if nobody can come back to it."""
        response.made = response_object(end)
        if self._stored.get(response_id) is not response:
            return None
        return response.record(response_id, response.made, complete=True)

    def _ended(self, response_id: str, response: StoredResponse, reply: LiveReply, record: Record) -> None:
        response.end(reply)
        reply.on_commit = None
        if self._stored.get(response_id) is not response:
            return
        body = response.current_body()
        self._bodies += len(body)
        if response.complete:
            self._index(response_id, response)
        elif response.background:
            record(response.record(response_id, body, complete=False))
        self._bound()

    def _index(self, response_id: str, response: StoredResponse) -> None:
        if response.complete:
            self._inputs[response.input.digest] = response_id

    def _take(self, response_id: str, response: StoredResponse) -> None:
        self._stored[response_id] = response
        self._bytes.hold(response.input)
        self._bound()

    def _bound(self) -> None:
        size = sum(response.size for response in self._stored.values())
        for response_id in list(self._stored)[:-1]:
            if size <= MAX_BYTES and len(self._stored) <= MAX_RESPONSES:
                return
            size -= self._stored[response_id].size
            self.delete(response_id)


def following(before: StoredResponse | None, record: ResponseRecord) -> StoredResponse:
    """A response as it was recorded, ``before`` the one that it comes after. Raises: ValueError, if it cannot be read."""
    items = None
    if before is not None and record.after is not None:
        items = before.conversation() if record.after.output else before.input
    return StoredResponse(
        None,
        record.streamed,
        record.background,
        followed_by(items, load_exact(record.input)),
        record.after,
        None,
        record.body,
        record.complete,
    )


def response_object(end: bytes) -> bytes:
    """The response object in what ends a reply: the whole body, or the last member of a stream's last event."""
    event = events_of(end)[-1]
    if not event.startswith(b"event: "):
        return event
    member = b'"response":'
    return event[event.index(member) + len(member) :].rstrip()[:-1]


def _is_reference(item: Any) -> bool:
    """``{"type": "item_reference", "id": ...}``; the type may be left out."""
    if not isinstance(item, dict) or not isinstance(item.get("id"), str):
        return False
    return item.get("type") == "item_reference" or item.keys() == {"id"}
