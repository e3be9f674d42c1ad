"""Gemini, the streamed reply: neutral events become ``GenerateContentResponse`` chunks.

    SSE (``?alt=sse``)  data: {...}                     one event a chunk
    a JSON array        [{...}   ,{...}   ,{...}   ]    without it

A call is one part with all of its arguments, when it is complete; text is cut anywhere. Every chunk has a part, if only an empty
text: the SDKs' chats drop a reply that holds a content without parts. The last chunk alone has a finish reason.

Nothing may stand between events: @google/genai (1.30) takes a comment for a part of the next chunk and fails with "Incomplete JSON
segment at the end". So the sign of life is a chunk with an empty text. An error is bare JSON, not an event: that is how the SDKs
know it, and gemini-cli then tries again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from adapter.errors import AdapterError
from adapter.ids import IdSource
from adapter.protocols import gemini_reply
from adapter.protocols.common import dump_json
from adapter.protocols.gemini_reply import ThoughtDisplay
from adapter.types import ParsedModelOutput, ReasoningDelta, ReplyEvent, TextDelta, ToolCallEnd, Usage
from engine.types import FinishReason


class GeminiStream:
    """One streamed reply (``base.ReplyStream``) as server-sent events."""

    def __init__(self, *, reply_id: str, model: str, ids: IdSource, display: ThoughtDisplay) -> None:
        self._about = {"modelVersion": model, "responseId": reply_id}
        # One part, of which the text is still to come: all but a few chunks of a reply are so.
        opened, closed = orjson.dumps(self._chunk_of([{"text": ""}])).split(b'""', 1)
        self._text_head, self._text_tail = opened, closed
        self._ids = ids
        self._shows_thoughts = display is ThoughtDisplay.SHOWN
        self._is_signed = False

    def start(self, input_tokens: int) -> bytes:
        chunk = self._chunk_of([gemini_reply.text_part("")])
        return self._frame(dump_json(chunk | {"usageMetadata": gemini_reply.usage_body(Usage(input_tokens, 0))}))

    def events(self, events: Sequence[ReplyEvent]) -> bytes:
        return b"".join([self._event(event) for event in events])

    def keepalive(self) -> bytes:
        return self._text("", "")

    def finish(self, parsed: ParsedModelOutput, reason: FinishReason, usage: Usage) -> bytes:
        last = gemini_reply.candidate(
            [gemini_reply.text_part("") | self._signature()], gemini_reply.finish_reason(parsed, reason)
        )
        chunk = {"candidates": [last], "usageMetadata": gemini_reply.usage_body(usage), **self._about}
        return self._frame(dump_json(chunk))

    def error(self, error: AdapterError) -> bytes:
        return orjson.dumps(gemini_reply.error_body(error)) + b"\n\n"

    def _event(self, event: ReplyEvent) -> bytes:
        match event:
            case TextDelta(text) if text and not self._is_signed:
                return self._part(gemini_reply.text_part(text) | self._signature())
            case TextDelta(text):
                return self._text(text, "") if text else b""
            case ReasoningDelta(text):
                return self._text(text, ',"thought":true') if text and self._shows_thoughts else b""
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

    def _chunk_of(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        return {"candidates": [gemini_reply.candidate(parts)], **self._about}

    def _part(self, part: dict[str, Any]) -> bytes:
        return self._frame(dump_json(self._chunk_of([part])))

    def _text(self, text: str, more: str) -> bytes:
        """A chunk with one text; ``more`` are further members of the part, as JSON."""
        return self._frame(self._text_head + orjson.dumps(text) + more.encode() + self._text_tail)

    def _frame(self, chunk: bytes) -> bytes:
        return b"data: " + chunk + b"\n\n"


class GeminiArrayStream(GeminiStream):
    """The same chunks as one JSON array, which only a complete reply closes."""

    def start(self, input_tokens: int) -> bytes:
        return b"[" + super().start(input_tokens).removeprefix(b",")

    def keepalive(self) -> bytes:
        return b"\n\n"

    def finish(self, parsed: ParsedModelOutput, reason: FinishReason, usage: Usage) -> bytes:
        return super().finish(parsed, reason, usage) + b"]\n\n"

    def error(self, error: AdapterError) -> bytes:
        return b"," + super().error(error)

    def _frame(self, chunk: bytes) -> bytes:
        return b"," + chunk + b"\n\n"
