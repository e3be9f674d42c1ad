"""Anthropic Messages, the streamed reply: neutral events become the official event sequence.

    message_start, ping, (content_block_start, content_block_delta*, content_block_stop)*, message_delta, message_stop

Every frame has its ``event:`` line: without it the official SDKs and Claude Code drop the event. Blocks come in the order
in which the model wrote them, so text after a tool call is a block of its own here, while the whole body has all text in
one block.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import orjson

from adapter.errors import AdapterError
from adapter.ids import IdSource
from adapter.jsontext import dump_json
from adapter.protocols import anthropic_reply
from adapter.types import (
    ParsedModelOutput,
    ReasoningDelta,
    ReplyEvent,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from engine.types import FinishReason

_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_MESSAGE_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'


class _Block(StrEnum):
    """A kind of content block, by its type on the wire."""

    THINKING = "thinking"
    TEXT = "text"
    TOOL_USE = "tool_use"


_DELTAS = {
    _Block.THINKING: '"type":"thinking_delta","thinking":',
    _Block.TEXT: '"type":"text_delta","text":',
    _Block.TOOL_USE: '"type":"input_json_delta","partial_json":',
}


class AnthropicStream:
    """One streamed reply (``base.ReplyStream``). ``_open`` is the block that deltas go to, ``_prefix`` the start of its frames."""

    def __init__(
        self, *, reply_id: str, model: str, ids: IdSource, display: anthropic_reply.ThinkingDisplay | None = None
    ) -> None:
        self._reply_id = reply_id
        self._model = model
        self._ids = ids
        self._hides_thinking = display is anthropic_reply.ThinkingDisplay.OMITTED
        self._open: _Block | None = None
        self._index = -1
        self._prefix = b""
        self._signature = ""
        self._has_arguments = False

    def start(self, input_tokens: int) -> bytes:
        message = anthropic_reply.message_body(
            self._reply_id, self._model, content=[], stop_reason=None, stop_sequence=None, usage=Usage(input_tokens, 0)
        )
        return _frame("message_start", {"message": message}) + _PING

    def events(self, events: Sequence[ReplyEvent]) -> bytes:
        return b"".join([self._event(event) for event in events])

    def keepalive(self) -> bytes:
        return _PING

    def finish(self, parsed: ParsedModelOutput, reason: FinishReason, usage: Usage) -> bytes:
        stop_reason = anthropic_reply.stop_reason(parsed, reason)
        stop_sequence = parsed.stop_sequence if stop_reason == "stop_sequence" else None
        end = {
            "delta": {"stop_reason": stop_reason, "stop_sequence": stop_sequence},
            "usage": anthropic_reply.usage_body(usage),
        }
        return self._close() + _frame("message_delta", end) + _MESSAGE_STOP

    def error(self, error: AdapterError) -> bytes:
        return b"event: error\ndata: " + orjson.dumps(anthropic_reply.error_body(error)) + b"\n\n"

    def _event(self, event: ReplyEvent) -> bytes:
        match event:
            case TextDelta(text):
                return self._prose(_Block.TEXT, text)
            case ReasoningDelta(text):
                return self._prose(_Block.THINKING, text)
            case ToolCallStart(name):
                tool_id = anthropic_reply.new_tool_use_id(self._ids)
                self._has_arguments = False
                return self._begin(_Block.TOOL_USE, anthropic_reply.tool_use_block(tool_id, name, {}))
            case ToolCallDelta(arguments):
                self._has_arguments = self._has_arguments or bool(arguments)
                return self._delta(arguments)
            case ToolCallEnd(use):
                # The client must be able to parse the input even if the parser streamed none of it.
                missing = b"" if self._has_arguments else self._delta(dump_json(use.input).decode())
                return missing + self._close()

    def _prose(self, kind: _Block, text: str) -> bytes:
        if not text:
            return b""
        begun = b""
        if self._open is not kind and kind is _Block.TEXT:
            begun = self._begin(kind, anthropic_reply.text_block(""))
        elif self._open is not kind:
            self._signature = anthropic_reply.new_signature(self._ids)
            begun = self._begin(kind, anthropic_reply.thinking_block("", ""))
        hidden = kind is _Block.THINKING and self._hides_thinking
        return begun if hidden else begun + self._delta(text)

    def _begin(self, kind: _Block, empty_block: dict[str, Any]) -> bytes:
        closed = self._close()
        self._open = kind
        self._index += 1
        self._prefix = (
            f'event: content_block_delta\ndata: {{"type":"content_block_delta","index":{self._index},"delta":{{{_DELTAS[kind]}'
        ).encode()
        return closed + _frame("content_block_start", {"index": self._index, "content_block": empty_block})

    def _delta(self, text: str) -> bytes:
        return self._prefix + orjson.dumps(text) + b"}}\n\n" if text else b""

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        signature = b""
        if self._open is _Block.THINKING:
            delta = {"type": "signature_delta", "signature": self._signature}
            signature = _frame("content_block_delta", {"index": self._index, "delta": delta})
        self._open = None
        return signature + _frame("content_block_stop", {"index": self._index})


def _frame(event: str, members: dict[str, Any]) -> bytes:
    return b"event: " + event.encode() + b"\ndata: " + orjson.dumps({"type": event, **members}) + b"\n\n"
