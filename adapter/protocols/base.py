"""What every wire protocol offers, sans I/O: JSON of a request in, a neutral ``ChatRequest`` out; events in, wire frames out.

A stream is ``start``, any number of ``events``, then either ``finish`` or ``error``. ``finish`` holds the frames that make a reply
look complete: they are sent only after the turn is committed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from adapter.errors import AdapterError
from adapter.ids import IdSource
from adapter.protocols.history import Checkpoint
from adapter.types import ChatRequest, ParsedModelOutput, Reply, ReplyEvent, TokenLogProb, Usage
from engine.types import FinishReason


class ReplyStream(Protocol):
    """One streamed reply as wire frames. Each method returns the bytes to send now, possibly none."""

    def start(self, input_tokens: int) -> bytes: ...

    def events(self, events: Sequence[ReplyEvent]) -> bytes: ...

    def keepalive(self) -> bytes:
        """A frame that this protocol's clients count as a sign of life."""
        ...

    def finish(self, parsed: ParsedModelOutput, reason: FinishReason, usage: Usage) -> bytes:
        """Close what is open, report usage and stop reason, end the stream."""
        ...

    def error(self, error: AdapterError) -> bytes:
        """The protocol's error event. Never followed by anything that looks like a complete end."""
        ...


class WireProtocol(Protocol):
    """One per protocol; stateless."""

    name: str

    def parse_request(self, body: Mapping[str, Any], without: Collection[str] = ()) -> ChatRequest:
        """The messages as they stand: system messages inside the history are not folded (``folding.folded``).

        ``without`` names optional rules of ``normalise.RULES`` to leave out. Raises: BadRequest, naming the field as the client
        wrote it (``messages.0.role``).
        """
        ...

    def body_session(self, body: Mapping[str, Any]) -> str | None:
        """The session's name, if the body carries one."""
        ...

    def reply(
        self, parsed: ParsedModelOutput, reason: FinishReason, ids: IdSource, request: ChatRequest | None = None
    ) -> Reply:
        """``request`` is what is answered, for a protocol whose replies repeat some of it."""
        ...

    def render_body(self, reply: Reply, *, reply_id: str, model: str, usage: Usage, created: int) -> dict[str, Any]:
        """The whole reply as a JSON body. ``created`` is Unix time in seconds."""
        ...

    def new_reply_id(self, ids: IdSource, sid: str = "") -> str:
        """``sid``: the session, for a protocol whose clients come back to a reply by its id alone."""
        ...

    def stream(
        self, request: ChatRequest, *, reply_id: str, model: str, ids: IdSource, created: int
    ) -> ReplyStream: ...

    def render_error(self, error: AdapterError) -> dict[str, Any]:
        """The protocol's error body, naming ``error.field`` where there is one."""
        ...


@runtime_checkable
class GoesOn(Protocol):
    """What a protocol offers besides if it can read a request from where an earlier one with the same beginning was read to."""

    name: str
    history: str
    """The member of a body whose items are its messages."""

    def parse_rest(self, body: Mapping[str, Any], known: Checkpoint | None) -> ChatRequest:
        """As ``parse_request`` of the whole; ``body`` holds only the messages behind ``known``.

        Raises: BadRequest; CannotGoOn.
        """
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the answers in a reply. ``tokens`` are all that were sampled for it, if the client wants to see them."""

    reply: Reply
    tokens: Sequence[TokenLogProb] | None = None


class ChoiceStream(Protocol):
    """One choice of a streamed reply as wire frames: ``start``, any number of ``events``, ``end_choice``."""

    def start(self, input_tokens: int) -> bytes: ...

    def add_tokens(self, tokens: Sequence[TokenLogProb]) -> None:
        """Tokens to report with the next frame."""
        ...

    def events(self, events: Sequence[ReplyEvent]) -> bytes: ...

    def end_choice(self, parsed: ParsedModelOutput, reason: FinishReason) -> bytes:
        """Close what is open in this choice and say why it ended."""
        ...

    def end(self, usage: Usage) -> bytes:
        """End the whole stream, once all of its choices have ended."""
        ...

    def keepalive(self) -> bytes: ...

    def error(self, error: AdapterError) -> bytes: ...


@runtime_checkable
class ManyChoices(Protocol):
    """What a protocol offers besides if ``ChatRequest.n`` may be above 1 in it, or ``log_probs`` set."""

    def choice_stream(
        self, request: ChatRequest, *, index: int, reply_id: str, model: str, ids: IdSource, created: int
    ) -> ChoiceStream: ...

    def render_choices(
        self, choices: Sequence[Choice], *, reply_id: str, model: str, usage: Usage, created: int
    ) -> dict[str, Any]: ...
