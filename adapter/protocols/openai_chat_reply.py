"""OpenAI Chat Completions, the parts of a reply that its whole and its streamed form share: calls, message, usage, errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adapter.errors import AdapterError, PromptTooLong
from adapter.ids import IdSource
from adapter.jsontext import dump_json
from adapter.protocols.base import Choice
from adapter.protocols.common import NEUTRAL_HISTORY, error_message, field_of
from adapter.types import ParsedModelOutput, TokenLogProb, Usage

_ERRORS: Mapping[int, tuple[str, str | None]] = {
    400: ("invalid_request_error", None),
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "insufficient_permissions"),
    404: ("not_found_error", "not_found"),
    409: ("conflict_error", "conflict"),
    410: ("not_found_error", "gone"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    502: ("server_error", "upstream_failed"),
    503: ("server_error", "service_unavailable"),
    504: ("server_error", "timeout"),
}
"""HTTP status: type, code. Other 4xx are like 400, other 5xx are ``server_error``."""


def new_completion_id(ids: IdSource) -> str:
    return ids.new("chatcmpl-", 24)


def new_call_id(ids: IdSource) -> str:
    return ids.new("call_", 24)


def call_body(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def message_body(parsed: ParsedModelOutput, ids: IdSource) -> dict[str, Any]:
    """The assistant message; ``content`` is null where the model wrote no text, other keys are left out when empty."""
    message: dict[str, Any] = {"role": "assistant", "content": parsed.text or None}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_uses:
        message["tool_calls"] = [
            call_body(new_call_id(ids), use.name, dump_json(use.input).decode()) for use in parsed.tool_uses
        ]
    return message


def choice_body(index: int, choice: Choice) -> dict[str, Any]:
    message, finish_reason = choice.reply.wire
    body = {"index": index, "message": message, "finish_reason": finish_reason}
    return body if choice.tokens is None else body | {"logprobs": log_probs_body(choice.tokens)}


def log_probs_body(tokens: Sequence[TokenLogProb]) -> dict[str, Any]:
    """Every token that was sampled, those of reasoning, calls and the end included: as many as ``completion_tokens``.

    The engine tells no alternatives, so ``top_logprobs`` are empty.
    """
    return {"content": [_token_body(token) for token in tokens], "refusal": None}


def _token_body(token: TokenLogProb) -> dict[str, Any]:
    text = token.text.decode(errors="replace")
    return {"token": text, "logprob": token.log_prob, "bytes": list(token.text), "top_logprobs": []}


def usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def error_body(error: AdapterError, history: str = NEUTRAL_HISTORY) -> dict[str, Any]:
    """``history``: the name of the field that holds the conversation, in a protocol that has the same bodies of errors."""
    field = field_of(error, history)
    if isinstance(error, PromptTooLong):
        return _error(_too_long(error), "invalid_request_error", field, "context_length_exceeded")
    kind, code = _ERRORS.get(error.status, ("server_error", None) if error.status >= 500 else _ERRORS[400])
    if error.status == 404 and error.field == "model":
        code = "model_not_found"
    return _error(error_message(error, history), kind, field, code)


def _too_long(error: PromptTooLong) -> str:
    """The words by which agent CLIs know that they must compact their history."""
    return (
        f"This model's maximum context length is {error.max_tokens} tokens. However, your messages resulted in "
        f"{error.prompt_tokens} tokens. Please reduce the length of the messages."
    )


def _error(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
