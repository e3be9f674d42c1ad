"""OpenAI Responses: ``POST /v1/responses``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from adapter.errors import AdapterError
from adapter.ids import IdSource
from adapter.protocols import openai_responses_reply as replies
from adapter.protocols.common import manager_message, neutral_finish_reason
from adapter.protocols.openai_responses_request import ResponsesContext, parse_responses_request
from adapter.protocols.openai_responses_stream import ResponsesStream
from adapter.types import ChatRequest, ParsedModelOutput, Reply, Usage
from engine.types import FinishReason


class OpenAIResponses:
    """``base.WireProtocol`` for Responses. ``Reply.wire`` is ``(context, status, output items)``."""

    name = "openai_responses"

    def parse_request(self, body: Mapping[str, Any], without: Collection[str] = ()) -> ChatRequest:
        return parse_responses_request(body, without)

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
        context = ResponsesContext.of(request)
        status = replies.status_of(parsed, reason)
        return Reply(
            wire=(context, status, replies.output_items(parsed, reason, ids, context)),
            manager_message=manager_message(parsed),
            finish_reason=neutral_finish_reason(parsed, reason),
        )

    def render_body(self, reply: Reply, *, reply_id: str, model: str, usage: Usage, created: int) -> dict[str, Any]:
        context, status, output = reply.wire
        return replies.response_body(
            context, reply_id=reply_id, model=model, created=created, status=status, output=output, usage=usage
        )

    def new_reply_id(self, ids: IdSource, sid: str = "") -> str:
        return replies.new_response_id(ids, sid)

    def stream(
        self, request: ChatRequest, *, reply_id: str, model: str, ids: IdSource, created: int
    ) -> ResponsesStream:
        context = ResponsesContext.of(request)
        return ResponsesStream(reply_id=reply_id, model=model, ids=ids, created=created, context=context)

    def render_error(self, error: AdapterError) -> dict[str, Any]:
        return replies.error_body(error)
