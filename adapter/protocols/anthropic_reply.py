"""Anthropic Messages, the parts of a reply that its whole and its streamed form share: blocks, stop reason, usage, errors."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from adapter.errors import AdapterError, BadRequest, PromptTooLong
from adapter.ids import IdSource
from adapter.protocols.common import error_message, neutral_finish_reason
from adapter.types import ParsedModelOutput, Usage
from engine.types import FinishReason

_ERROR_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    410: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""By HTTP status; other 4xx are ``invalid_request_error``, other 5xx ``api_error`` (the SDK's ``ErrorType``)."""


class ThinkingDisplay(StrEnum):
    """What a reply shows of its thinking; the request chooses (``ChatRequest.reply_context``)."""

    FULL = "full"
    OMITTED = "omitted"
    """Blocks without text. Their signature leads back to the turn, whose thinking stays in the prompt."""


_NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
"""By this the SDKs' tool runners know that they must send the whole history (anthropic 2.14, ``lib/threads/_thread_state.py``)."""


def new_message_id(ids: IdSource) -> str:
    return ids.new("msg_", 24)


def new_tool_use_id(ids: IdSource) -> str:
    return ids.new("toolu_", 16)


def new_signature(ids: IdSource) -> str:
    """Opaque to clients, which replay it with the thinking block."""
    return ids.new("", 32)


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def thinking_block(thinking: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": thinking, "signature": signature}


def tool_use_block(tool_use_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": tool_use_id, "name": name, "input": arguments}


def content_blocks(
    parsed: ParsedModelOutput, ids: IdSource, display: ThinkingDisplay | None = None
) -> list[dict[str, Any]]:
    """Thinking, text, tool calls; nothing for what is empty. Clients require thinking to come first."""
    blocks: list[dict[str, Any]] = []
    if parsed.reasoning:
        shown = "" if display is ThinkingDisplay.OMITTED else parsed.reasoning
        blocks.append(thinking_block(shown, new_signature(ids)))
    if parsed.text:
        blocks.append(text_block(parsed.text))
    blocks.extend(tool_use_block(new_tool_use_id(ids), use.name, use.input) for use in parsed.tool_uses)
    return blocks


def stop_reason(parsed: ParsedModelOutput, reason: FinishReason) -> str:
    match neutral_finish_reason(parsed, reason):
        case "tool_calls":
            return "tool_use"
        case "length":
            return "max_tokens"
        case _:
            return "end_turn" if parsed.stop_sequence is None else "stop_sequence"


def usage_body(usage: Usage) -> dict[str, Any]:
    """``input_tokens`` leaves out what came from the cache; the keys of the cache are there only if something did.

    At least one input token is never cached (its logits are needed), and must not be reported so: Claude Code takes
    ``input_tokens: 0`` for "not given" and would count the prompt twice.
    """
    cached = max(0, min(usage.cached_tokens, usage.input_tokens - 1))
    body: dict[str, Any] = {"input_tokens": usage.input_tokens - cached, "output_tokens": usage.output_tokens}
    if cached:
        body |= {"cache_read_input_tokens": cached, "cache_creation_input_tokens": 0}
    if usage.reasoning_tokens:
        body["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return body


def message_body(
    reply_id: str,
    model: str,
    *,
    content: list[dict[str, Any]],
    stop_reason: str | None,
    stop_sequence: str | None,
    usage: Usage,
) -> dict[str, Any]:
    return {
        "id": reply_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": usage_body(usage),
    }


def error_body(error: AdapterError) -> dict[str, Any]:
    default = "api_error" if error.status >= 500 else "invalid_request_error"
    # Claude Code compacts its history when it reads exactly these words.
    message = str(error) if isinstance(error, PromptTooLong) else error_message(error)
    body: dict[str, Any] = {"type": _ERROR_TYPES.get(error.status, default), "message": message}
    if isinstance(error, BadRequest) and error.field == "thread":
        body["details"] = _NO_THREADS
    return {"type": "error", "error": body}
