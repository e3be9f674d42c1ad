"""Gemini, the parts of a reply that its whole and its streamed form share: parts, candidate, usage, errors.

A reply carries one thought signature, at its first part that is no thought, as the official API does: clients drop thoughts, and
replay the signature with what they keep. A reply that is all thought, or empty, carries it at an empty text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from adapter.errors import AdapterError, PromptTooLong
from adapter.ids import IdSource
from adapter.protocols.common import error_message, field_of, neutral_finish_reason
from adapter.types import ParsedModelOutput, TokenLogProb, Usage
from engine.types import FinishReason

_STATUSES: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    410: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""By HTTP status (google/rpc/code.proto); other 4xx are ``INVALID_ARGUMENT``, other 5xx ``INTERNAL``."""

HISTORY = "contents"
"""The field that holds the conversation."""

_DETAIL = "type.googleapis.com/google.rpc."


class ThoughtDisplay(StrEnum):
    """Whether a reply shows its thoughts; the request chooses (``ChatRequest.reply_context``)."""

    SHOWN = "shown"
    OMITTED = "omitted"
    """The signature leads back to the turn, whose reasoning stays in the prompt."""


def new_response_id(ids: IdSource) -> str:
    return ids.new("", 24)


def new_call_id(ids: IdSource) -> str:
    return ids.new("call_", 24)


def new_signature(ids: IdSource) -> str:
    """Opaque to clients, which replay it with its part."""
    return ids.new("", 32)


def text_part(text: str) -> dict[str, Any]:
    return {"text": text}


def thought_part(text: str) -> dict[str, Any]:
    return {"text": text, "thought": True}


def call_part(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"functionCall": {"id": call_id, "name": name, "args": arguments}}


def reply_parts(parsed: ParsedModelOutput, ids: IdSource, display: ThoughtDisplay) -> list[dict[str, Any]]:
    """Thoughts, text, calls; nothing for what is empty, but at least one part."""
    signature = new_signature(ids)
    said = [text_part(parsed.text)] if parsed.text else []
    said += [call_part(new_call_id(ids), use.name, use.input) for use in parsed.tool_uses]
    first, *others = said or [text_part("")]
    thoughts = [thought_part(parsed.reasoning)] if parsed.reasoning and display is ThoughtDisplay.SHOWN else []
    return [*thoughts, first | {"thoughtSignature": signature}, *others]


def candidate(
    index: int,
    parts: list[dict[str, Any]],
    finish_reason: str | None = None,
    tokens: Sequence[TokenLogProb] | None = None,
) -> dict[str, Any]:
    """``tokens`` are those whose log probs the client wants to see."""
    made: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": index}
    if finish_reason is not None:
        made["finishReason"] = finish_reason
    return made if not tokens else made | {"logprobsResult": log_probs_body(tokens)}


def log_probs_body(tokens: Sequence[TokenLogProb]) -> dict[str, Any]:
    """Every token that was sampled, those of thoughts, calls and the end included. The engine tells no alternatives."""
    return {
        "chosenCandidates": [
            {"token": token.text.decode(errors="replace"), "logProbability": token.log_prob} for token in tokens
        ]
    }


def finish_reason(parsed: ParsedModelOutput, reason: FinishReason) -> str:
    """The protocol has no other word for calls and for stop strings than STOP."""
    return "MAX_TOKENS" if neutral_finish_reason(parsed, reason) == "length" else "STOP"


def usage_body(usage: Usage) -> dict[str, Any]:
    """``candidatesTokenCount`` leaves out the thoughts; counts that would be 0 are left out, as protocol buffers do."""
    counts = {
        "promptTokenCount": usage.input_tokens,
        "candidatesTokenCount": usage.output_tokens - usage.reasoning_tokens,
        "thoughtsTokenCount": usage.reasoning_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
        "totalTokenCount": usage.input_tokens + usage.output_tokens,
    }
    return {name: count for name, count in counts.items() if count}


def error_body(error: AdapterError) -> dict[str, Any]:
    default = "INTERNAL" if error.status >= 500 else "INVALID_ARGUMENT"
    body = {
        "code": error.status,
        "message": _too_long(error) if isinstance(error, PromptTooLong) else error_message(error, HISTORY),
        "status": _STATUSES.get(error.status, default),
    }
    details = _details(error)
    return {"error": body | {"details": details} if details else body}


def _details(error: AdapterError) -> list[dict[str, Any]]:
    """google/rpc/error_details.proto: clients wait as long as ``RetryInfo`` says."""
    details: list[dict[str, Any]] = []
    field = field_of(error, HISTORY)
    if field is not None and error.status == 400:
        violation = {"field": field, "description": str(error)}
        details.append({"@type": f"{_DETAIL}BadRequest", "fieldViolations": [violation]})
    if error.retry_after is not None:
        details.append({"@type": f"{_DETAIL}RetryInfo", "retryDelay": f"{error.retry_after:g}s"})
    return details


def _too_long(error: PromptTooLong) -> str:
    """The official API's words."""
    return f"The input token count ({error.prompt_tokens}) exceeds the maximum number of tokens allowed ({error.max_tokens})."
