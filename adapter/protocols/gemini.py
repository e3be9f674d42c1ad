"""Gemini: ``POST /v1beta/models/NAME:generateContent``, ``:streamGenerateContent`` and, by the same parser, ``:countTokens``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from adapter.errors import AdapterError
from adapter.ids import IdSource
from adapter.protocols import gemini_reply
from adapter.protocols.base import Choice
from adapter.protocols.common import manager_message, neutral_finish_reason
from adapter.protocols.gemini_reply import ThoughtDisplay
from adapter.protocols.gemini_request import parse_generate_request
from adapter.protocols.gemini_stream import GeminiStream
from adapter.types import ChatRequest, ParsedModelOutput, Reply, Usage
from engine.types import FinishReason


class Gemini:
    """``base.WireProtocol`` and ``base.ManyChoices`` for the Gemini API; a stream is server-sent events.

    ``Reply.wire`` is ``(parts, finishReason)``.
    """

    name = "gemini"

    def parse_request(self, body: Mapping[str, Any], without: Collection[str] = ()) -> ChatRequest:
        return parse_generate_request(body, without)

    def body_session(self, body: Mapping[str, Any]) -> str | None:
        """``labels.session_id``."""
        labels = body.get("labels")
        named = labels.get("session_id") if isinstance(labels, dict) else None
        return named if isinstance(named, str) and named else None

    def reply(
        self, parsed: ParsedModelOutput, reason: FinishReason, ids: IdSource, request: ChatRequest | None = None
    ) -> Reply:
        return Reply(
            wire=(gemini_reply.reply_parts(parsed, ids, _display(request)), gemini_reply.finish_reason(parsed, reason)),
            manager_message=manager_message(parsed),
            finish_reason=neutral_finish_reason(parsed, reason),
        )

    def render_body(self, reply: Reply, *, reply_id: str, model: str, usage: Usage, created: int) -> dict[str, Any]:
        return self.render_choices([Choice(reply)], reply_id=reply_id, model=model, usage=usage, created=created)

    def render_choices(
        self, choices: Sequence[Choice], *, reply_id: str, model: str, usage: Usage, created: int
    ) -> dict[str, Any]:
        candidates = []
        for index, choice in enumerate(choices):
            parts, finish_reason = choice.reply.wire
            candidates.append(gemini_reply.candidate(index, parts, finish_reason, choice.tokens))
        return {
            "candidates": candidates,
            "usageMetadata": gemini_reply.usage_body(usage),
            "modelVersion": model,
            "responseId": reply_id,
        }

    def new_reply_id(self, ids: IdSource, sid: str = "") -> str:
        return gemini_reply.new_response_id(ids)

    def stream(self, request: ChatRequest, *, reply_id: str, model: str, ids: IdSource, created: int) -> GeminiStream:
        return self.choice_stream(request, index=0, reply_id=reply_id, model=model, ids=ids, created=created)

    def choice_stream(
        self, request: ChatRequest, *, index: int, reply_id: str, model: str, ids: IdSource, created: int
    ) -> GeminiStream:
        return GeminiStream(index=index, reply_id=reply_id, model=model, ids=ids, display=_display(request))

    def render_error(self, error: AdapterError) -> dict[str, Any]:
        return gemini_reply.error_body(error)


def _display(request: ChatRequest | None) -> ThoughtDisplay:
    """Thoughts are shown where nobody asked, as in replies that answer no request of this protocol."""
    shown = None if request is None else request.reply_context
    return shown if isinstance(shown, ThoughtDisplay) else ThoughtDisplay.SHOWN
