"""Anthropic Messages: ``POST /v1/messages`` and, by the same parser, ``/v1/messages/count_tokens``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import orjson

from adapter.errors import AdapterError
from adapter.ids import IdSource
from adapter.protocols import anthropic_reply
from adapter.protocols.anthropic_reply import ThinkingDisplay
from adapter.protocols.anthropic_request import parse_messages_request
from adapter.protocols.anthropic_stream import AnthropicStream
from adapter.protocols.common import manager_message, neutral_finish_reason
from adapter.protocols.history import Checkpoint
from adapter.types import ChatRequest, ParsedModelOutput, Reply, Usage
from engine.types import FinishReason


class AnthropicMessages:
    """``base.WireProtocol`` for Messages. ``Reply.wire`` is ``(content blocks, stop_reason)``."""

    name = "anthropic"
    history = "messages"

    def parse_request(self, body: Mapping[str, Any], without: Collection[str] = ()) -> ChatRequest:
        return parse_messages_request(body, without)

    def parse_rest(self, body: Mapping[str, Any], known: Checkpoint | None) -> ChatRequest:
        return parse_messages_request(body, known=known)

    def body_session(self, body: Mapping[str, Any]) -> str | None:
        """``metadata.session_id``, or the ``session_id`` in the JSON text that Claude Code puts into ``metadata.user_id``."""
        metadata = body.get("metadata")
        if not isinstance(metadata, dict):
            return None
        return _session_id(metadata) or _session_id(_json_object(metadata.get("user_id")))

    def reply(
        self, parsed: ParsedModelOutput, reason: FinishReason, ids: IdSource, request: ChatRequest | None = None
    ) -> Reply:
        stop_reason = anthropic_reply.stop_reason(parsed, reason)
        return Reply(
            wire=(anthropic_reply.content_blocks(parsed, ids, _display(request)), stop_reason),
            manager_message=manager_message(parsed),
            finish_reason=neutral_finish_reason(parsed, reason),
            stop_sequence=parsed.stop_sequence if stop_reason == "stop_sequence" else None,
        )

    def render_body(self, reply: Reply, *, reply_id: str, model: str, usage: Usage, created: int) -> dict[str, Any]:
        blocks, stop_reason = reply.wire
        return anthropic_reply.message_body(
            reply_id, model, content=blocks, stop_reason=stop_reason, stop_sequence=reply.stop_sequence, usage=usage
        )

    def new_reply_id(self, ids: IdSource, sid: str = "") -> str:
        return anthropic_reply.new_message_id(ids)

    def stream(
        self, request: ChatRequest, *, reply_id: str, model: str, ids: IdSource, created: int
    ) -> AnthropicStream:
        return AnthropicStream(reply_id=reply_id, model=model, ids=ids, display=_display(request))

    def render_error(self, error: AdapterError) -> dict[str, Any]:
        return anthropic_reply.error_body(error)


def _display(request: ChatRequest | None) -> ThinkingDisplay | None:
    return None if request is None else request.reply_context


def _json_object(text: Any) -> dict[str, Any]:
    """The JSON object that ``text`` spells; an empty one where it spells none."""
    if not isinstance(text, str):
        return {}
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _session_id(holder: Mapping[str, Any]) -> str | None:
    value = holder.get("session_id")
    return value if isinstance(value, str) and value else None
