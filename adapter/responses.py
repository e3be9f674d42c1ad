"""The stored responses of one session: what OpenAI Responses lets a client come back to.

A stored response is its input items, its response object as it stands, and the reply that makes it. Later requests go on from it
(``previous_response_id``), refer to its items, read it again or cancel it. It is part of its session and goes away with it.

Items are kept as JSON texts. The input is a chain of texts, one for each request of the conversation, and responses that go on from
one another share them: a conversation is held once however long it gets.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from adapter.errors import AdapterError, BadRequest, PreviousResponseNotFound
from adapter.jsontext import dump_json
from adapter.reply import LiveReply, ReplyState

MAX_RESPONSES = 64
"""Stored responses per session. A client goes on from its last one, or from one of a few where it branches."""

MAX_BYTES = 2 * 1024 * 1024
"""Bytes of JSON that a session's stored responses may take; the oldest go first, the newest stays whatever its size.
That is about four histories of 128k tokens, for clients that send all of it with every request."""

Item = dict[str, Any]
Describe = Callable[[str, AdapterError | None], dict[str, Any]]
"""The response object of a reply without output, by its status and error."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request whose input holds the whole conversation: ``own`` behind what is kept ``earlier``, as JSON arrays."""

    body: dict[str, Any]
    earlier: tuple[bytes, ...]
    own: list[Any]

    def texts(self) -> tuple[bytes, ...]:
        """All of its items as JSON arrays."""
        return (*self.earlier, dump_json(self.own))


@dataclass(slots=True)
class StoredResponse:
    """One response. ``body`` is None as long as its reply is open, then the response object as JSON."""

    reply: LiveReply
    streamed: bool
    input: tuple[bytes, ...]
    """JSON arrays that, one after the other, are the items before the reply."""
    describe: Describe | None
    """None once it has a body."""
    body: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes that only this response needs."""
        return len(self.input[-1]) + len(self.body or b"")

    @property
    def complete(self) -> bool:
        """Whether a conversation can go on from it."""
        return self.reply.state in (ReplyState.COMMITTED, ReplyState.DELIVERED)

    def current_body(self) -> bytes:
        """The response object as it stands."""
        return self.body if self.body is not None else self._described("in_progress", None)

    def input_items(self) -> list[Item]:
        return [item for text in self.input for item in orjson.loads(text)]

    def output_items(self) -> list[Item]:
        output: list[Item] = orjson.loads(self.current_body())["output"]
        return output

    def conversation(self) -> tuple[bytes, ...]:
        """All items up to the end of this response."""
        return (*self.input, dump_json(self.output_items()))

    def end(self, reply: LiveReply) -> None:
        """The reply has ended: its last event, or its body, has the response object."""
        if self.complete:
            self.body = _last_object(reply)
        else:
            cancelled = reply.state is ReplyState.CANCELLED
            self.body = self._described("cancelled", None) if cancelled else self._described("failed", reply.error)
        self.describe = None

    def _described(self, status: str, error: AdapterError | None) -> bytes:
        assert self.describe is not None
        return dump_json(self.describe(status, error))


@dataclass(slots=True)
class ResponseStore:
    """By id, oldest first."""

    _stored: OrderedDict[str, StoredResponse] = field(default_factory=OrderedDict)

    def __bool__(self) -> bool:
        """Whether anything is stored."""
        return bool(self._stored)

    def add(self, response_id: str, response: StoredResponse) -> None:
        """As long as nothing of its reply has happened."""
        self._stored[response_id] = response
        # First of all: others may let go of the events that this reads.
        response.reply.on_end.insert(0, response.end)
        response.reply.on_end.append(lambda _: self._bound())
        self._bound()

    def get(self, response_id: str) -> StoredResponse | None:
        return self._stored.get(response_id)

    def delete(self, response_id: str) -> None:
        self._stored.pop(response_id, None)

    def completed(self, body: Mapping[str, Any]) -> Conversation:
        """``body`` with what it goes on from before its own input, and items in place of references.

        What is malformed stays for the protocol to refuse. Raises: PreviousResponseNotFound, BadRequest.
        """
        own = self._own_items(body.get("input"))
        if own is None:
            return Conversation(dict(body), (), [])
        earlier = self._earlier(body.get("previous_response_id"))
        items = [item for text in earlier for item in orjson.loads(text)]
        return Conversation({**body, "input": items + own}, earlier, own)

    def _earlier(self, previous: Any) -> tuple[bytes, ...]:
        if not isinstance(previous, str):
            return ()
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

    def _bound(self) -> None:
        size = sum(response.size for response in self._stored.values())
        for response_id in list(self._stored)[:-1]:
            if size <= MAX_BYTES and len(self._stored) <= MAX_RESPONSES:
                return
            size -= self._stored.pop(response_id).size


def _is_reference(item: Any) -> bool:
    """``{"type": "item_reference", "id": ...}``; the type may be left out."""
    if not isinstance(item, dict) or not isinstance(item.get("id"), str):
        return False
    return item.get("type") == "item_reference" or item.keys() == {"id"}


def _last_object(reply: LiveReply) -> bytes:
    """The response object that ends a reply: the whole body, or the last member of a stream's last event."""
    with reply.observer(reply.events.end - 1) as reader:
        (event,) = reader.take_events(1)
    if not event.startswith(b"event: "):
        return event
    member = b'"response":'
    return event[event.index(member) + len(member) :].rstrip()[:-1]
