"""Gemini, the streamed reply: neutral events become ``GenerateContentResponse`` chunks.

    data: {"candidates": [...], "usageMetadata"?: {...}, "modelVersion": ..., "responseId": ...}

A call is one part with all of its arguments, when it is complete; text is cut anywhere. Every chunk has a part, if only an empty
text: the SDKs' chats drop a reply that holds a content without parts. The last chunk of a candidate alone has a finish reason.

Nothing may stand between events: @google/genai (1.30) takes a comment for a part of the next chunk and fails with "Incomplete JSON
segment at the end". So the sign of life is a chunk with an empty text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from adapter.errors import AdapterError
from adapter.ids import IdSource
from adapter.jsontext import dump_json
from adapter.protocols import gemini_reply
from adapter.protocols.gemini_reply import ThoughtDisplay
from adapter.types import (
    ParsedModelOutput,
    ReasoningDelta,
    ReplyEvent,
    TextDelta,
    TokenLogProb,
    ToolCallEnd,
    Usage,
)
from engine.types import FinishReason


class GeminiStream:
    """One streamed candidate (``base.ChoiceStream``), or a reply that is one (``base.ReplyStream``), as server-sent events."""

    def __init__(self, *, index: int = 0, reply_id: str, model: str, ids: IdSource, display: ThoughtDisplay) -> None:
        self._index = index
        self._about = {"modelVersion": model, "responseId": reply_id}
        self._ids = ids
        self._shows_thoughts = display is ThoughtDisplay.SHOWN
        self._is_signed = False
        self._tokens: list[TokenLogProb] = []
        # All but a few chunks of a reply are one text: what stands around it is put together once.
        self._text_head, self._text_tail = orjson.dumps(self._chunk(gemini_reply.text_part(""))).split(b'""', 1)

    def start(self, input_tokens: int) -> bytes:
        return self._frame(dump_json(self._chunk(gemini_reply.text_part(""), usage=Usage(input_tokens, 0))))

    def events(self, events: Sequence[ReplyEvent]) -> bytes:
        return b"".join([self._event(event) for event in events])

    def keepalive(self) -> bytes:
        return self._text("", thought=False)

    def add_tokens(self, tokens: Sequence[TokenLogProb]) -> None:
        self._tokens += tokens

    def finish(self, parsed: ParsedModelOutput, reason: FinishReason, usage: Usage) -> bytes:
        return self._last(parsed, reason, usage)

    def end_choice(self, parsed: ParsedModelOutput, reason: FinishReason) -> bytes:
        return self._last(parsed, reason, None)

    def end(self, usage: Usage) -> bytes:
        """The usage, which is known once all candidates have ended."""
        return self._frame(dump_json(self._chunk(gemini_reply.text_part(""), usage=usage)))

    def error(self, error: AdapterError) -> bytes:
        return self._frame(orjson.dumps(gemini_reply.error_body(error)))

    def _event(self, event: ReplyEvent) -> bytes:
        match event:
            case TextDelta(text) if text and not self._is_signed:
                return self._part(gemini_reply.text_part(text) | self._signature())
            case TextDelta(text):
                return self._text(text, thought=False) if text else b""
            case ReasoningDelta(text):
                return self._text(text, thought=True) if text and self._shows_thoughts else b""
            case ToolCallEnd(use):
                signature = self._signature()
                call_id = gemini_reply.new_call_id(self._ids)
                return self._part(gemini_reply.call_part(call_id, use.name, use.input) | signature)
            case _:
                return b""

    def _signature(self) -> dict[str, str]:
        """What a part that is no thought has beside its content: the first one carries the signature."""
        if self._is_signed:
            return {}
        self._is_signed = True
        return {"thoughtSignature": gemini_reply.new_signature(self._ids)}

    def _last(self, parsed: ParsedModelOutput, reason: FinishReason, usage: Usage | None) -> bytes:
        """The candidate's last chunk."""
        why = gemini_reply.finish_reason(parsed, reason)
        return self._frame(dump_json(self._chunk(gemini_reply.text_part("") | self._signature(), why, usage)))

    def _text(self, text: str, *, thought: bool) -> bytes:
        if self._tokens:
            return self._part(gemini_reply.thought_part(text) if thought else gemini_reply.text_part(text))
        more = b',"thought":true' if thought else b""
        return self._frame(self._text_head + orjson.dumps(text) + more + self._text_tail)

    def _part(self, part: dict[str, Any]) -> bytes:
        return self._frame(dump_json(self._chunk(part)))

    def _chunk(
        self, part: dict[str, Any], finish_reason: str | None = None, usage: Usage | None = None
    ) -> dict[str, Any]:
        """One part, and the tokens that have not been reported yet."""
        tokens, self._tokens = self._tokens, []
        chunk: dict[str, Any] = {"candidates": [gemini_reply.candidate(self._index, [part], finish_reason, tokens)]}
        if usage is not None:
            chunk["usageMetadata"] = gemini_reply.usage_body(usage)
        return chunk | self._about

    def _frame(self, chunk: bytes) -> bytes:
        return b"data: " + chunk + b"\n\n"
