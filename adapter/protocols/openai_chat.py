"""OpenAI Chat Completions: ``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from adapter.errors import AdapterError
from adapter.ids import IdSource
from adapter.protocols import openai_chat_reply
from adapter.protocols.base import Choice
from adapter.protocols.common import manager_message, neutral_finish_reason
from adapter.protocols.openai_chat_request import parse_chat_request
from adapter.protocols.openai_chat_stream import OpenAIChatStream
from adapter.types import ChatRequest, ParsedModelOutput, Reply, Usage
from engine.types import FinishReason


class OpenAIChat:
    """``base.WireProtocol`` and ``base.ManyChoices`` for Chat Completions. ``Reply.wire`` is ``(message, finish_reason)``."""

    name = "openai_chat"

    def parse_request(self, body: Mapping[str, Any], without: Collection[str] = ()) -> ChatRequest:
        return parse_chat_request(body, without)

    def body_session(self, body: Mapping[str, Any]) -> str | None:
        """``metadata.session_id``, then ``user``."""
        metadata = body.get("metadata")
        named = metadata.get("session_id") if isinstance(metadata, dict) else None
        for value in (named, body.get("user")):
            if isinstance(value, str) and value:
                return value
        return None

    def reply(
        self, parsed: ParsedModelOutput, reason: FinishReason, ids: IdSource, request: ChatRequest | None = None
    ) -> Reply:
        finish_reason = neutral_finish_reason(parsed, reason)
        return Reply(
            wire=(openai_chat_reply.message_body(parsed, ids), finish_reason),
            manager_message=manager_message(parsed),
            finish_reason=finish_reason,
        )

    def render_body(self, reply: Reply, *, reply_id: str, model: str, usage: Usage, created: int) -> dict[str, Any]:
        return self.render_choices([Choice(reply)], reply_id=reply_id, model=model, usage=usage, created=created)

    def render_choices(
        self, choices: Sequence[Choice], *, reply_id: str, model: str, usage: Usage, created: int
    ) -> dict[str, Any]:
        return {
            "id": reply_id,
            "object": "chat.completion",
            "created": created,
            "model": model,
            "choices": [openai_chat_reply.choice_body(index, choice) for index, choice in enumerate(choices)],
            "usage": openai_chat_reply.usage_body(usage),
        }

    def new_reply_id(self, ids: IdSource, sid: str = "") -> str:
        return openai_chat_reply.new_completion_id(ids)

    def stream(
        self, request: ChatRequest, *, reply_id: str, model: str, ids: IdSource, created: int
    ) -> OpenAIChatStream:
        return self.choice_stream(request, index=0, reply_id=reply_id, model=model, ids=ids, created=created)

    def choice_stream(
        self, request: ChatRequest, *, index: int, reply_id: str, model: str, ids: IdSource, created: int
    ) -> OpenAIChatStream:
        return OpenAIChatStream(
            index=index, reply_id=reply_id, model=model, ids=ids, created=created, include_usage=request.include_usage
        )

    def render_error(self, error: AdapterError) -> dict[str, Any]:
        return openai_chat_reply.error_body(error)
