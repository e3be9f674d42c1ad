"""The console: ``POST /api/console/chat``. New input in, events of objects out; the server keeps the conversation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from adapter.errors import AdapterError
from adapter.ids import IdSource
from adapter.protocols.common import manager_message, neutral_finish_reason
from adapter.protocols.console_request import parse_console_request
from adapter.protocols.seed_events import COMMENT, MessageType, SeedEvents, call_data, failed_response
from adapter.types import ChatRequest, ParsedModelOutput, Reply, ReplyEvent, Usage
from engine.types import FinishReason


class ConsoleChat:
    """``base.WireProtocol`` of the console. ``Reply.wire`` is the list of messages."""

    name = "console"

    def parse_request(self, body: Mapping[str, Any], without: Collection[str] = ()) -> ChatRequest:
        """The new input only: what was said before is the server's to put before it."""
        return parse_console_request(body)

    def body_session(self, body: Mapping[str, Any]) -> str | None:
        """``session_id``, then ``user_id``."""
        for value in (body.get("session_id"), body.get("user_id")):
            if isinstance(value, str) and value:
                return value
        return None

    def reply(
        self, parsed: ParsedModelOutput, reason: FinishReason, ids: IdSource, request: ChatRequest | None = None
    ) -> Reply:
        messages = []
        if parsed.reasoning:
            messages.append(_text_message(MessageType.REASONING, parsed.reasoning))
        if parsed.text:
            messages.append(_text_message(MessageType.MESSAGE, parsed.text))
        for use in parsed.tool_uses:
            data = call_data(new_call_id(ids), use.name, use.input)
            messages.append(_message(MessageType.PLUGIN_CALL, {"type": "data", "data": data}))
        return Reply(messages, manager_message(parsed), neutral_finish_reason(parsed, reason))

    def render_body(self, reply: Reply, *, reply_id: str, model: str, usage: Usage, created: int) -> dict[str, Any]:
        return {
            "object": "response",
            "status": "completed",
            "id": reply_id,
            "created_at": created,
            "model": model,
            "output": reply.wire,
            "usage": {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens},
        }

    def new_reply_id(self, ids: IdSource, sid: str = "") -> str:
        return ids.new("response_", 24)

    def stream(self, request: ChatRequest, *, reply_id: str, model: str, ids: IdSource, created: int) -> ConsoleStream:
        return ConsoleStream(ids)

    def render_error(self, error: AdapterError) -> dict[str, Any]:
        return failed_response(error)


class ConsoleStream:
    """``base.ReplyStream`` of the console."""

    def __init__(self, ids: IdSource) -> None:
        self._events = SeedEvents(lambda: new_call_id(ids))

    def start(self, input_tokens: int) -> bytes:
        return self._events.start()

    def events(self, events: Sequence[ReplyEvent]) -> bytes:
        return self._events.events(events)

    def keepalive(self) -> bytes:
        return COMMENT

    def finish(self, parsed: ParsedModelOutput, reason: FinishReason, usage: Usage) -> bytes:
        return self._events.finish()

    def error(self, error: AdapterError) -> bytes:
        return self._events.error(error)


def new_call_id(ids: IdSource) -> str:
    return ids.new("call_", 24)


def _text_message(kind: MessageType, text: str) -> dict[str, Any]:
    return _message(kind, {"type": "text", "text": text})


def _message(kind: MessageType, content: dict[str, Any]) -> dict[str, Any]:
    return {
        "object": "message",
        "type": kind.value,
        "status": "completed",
        "role": "assistant",
        "content": [{"object": "content", **content}],
    }
