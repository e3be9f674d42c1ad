"""OpenAI Responses, the parts of a reply that its whole and its streamed form share: output items, the response object, errors.

Reasoning is given as a summary, the part that clients show and replay. Every item has an id of ours; a reasoning item also has
``encrypted_content``, whether it was asked for or not: a client that keeps the conversation itself then replays the item at all.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from adapter.errors import AdapterError, Gone, PreviousResponseNotFound, PromptTooLong, TooManyRequests
from adapter.ids import IdSource
from adapter.jsontext import dump_json
from adapter.protocols import openai_chat_reply
from adapter.protocols.common import neutral_finish_reason
from adapter.protocols.openai_responses_request import ResponsesContext
from adapter.protocols.openai_responses_tools import CUSTOM_MEMBER, WireTool
from adapter.types import ParsedModelOutput, ToolUse, Usage
from engine.types import FinishReason

IN_PROGRESS, COMPLETED, INCOMPLETE, FAILED = "in_progress", "completed", "incomplete", "failed"
"""Statuses of items and responses."""

Item = dict[str, Any]

HISTORY = "input"
"""The field that holds the conversation."""

RESPONSE_PREFIX = "resp_"
RANDOM_CHARACTERS = 24
"""96 bits of a response's id."""


def new_response_id(ids: IdSource, sid: str) -> str:
    """``resp_``, 24 characters that nobody can guess, and the session's name in base64url without padding.

    A client may come back to a response by nothing but its id: the name leads to the session, and to the worker that owns it.
    """
    name = base64.urlsafe_b64encode(sid.encode(errors="surrogatepass")).rstrip(b"=").decode()
    return ids.new(RESPONSE_PREFIX, RANDOM_CHARACTERS) + name


def session_of_response(response_id: str) -> str | None:
    """The session that the id of a response names; None where it names none. Nothing is said about whether there is either."""
    name = response_id[len(RESPONSE_PREFIX) + RANDOM_CHARACTERS :]
    if not response_id.startswith(RESPONSE_PREFIX) or not name:
        return None
    try:
        return base64.b64decode(name + "=" * (-len(name) % 4), altchars=b"-_", validate=True).decode()
    except ValueError:
        return None


def new_reasoning(ids: IdSource) -> Item:
    """A reasoning item without text yet."""
    item_id = ids.new("rs_", 24)
    return {"id": item_id, "type": "reasoning", "summary": [], "encrypted_content": ids.new("", 32)}


def with_summary(item: Item, text: str) -> Item:
    return {**item, "summary": [summary_part(text)]}


def summary_part(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}


def new_message(ids: IdSource) -> Item:
    """A message without text yet."""
    return {
        "id": ids.new("msg_", 24),
        "type": "message",
        "status": IN_PROGRESS,
        "role": "assistant",
        "content": [],
    }


def with_text(item: Item, text: str, status: str) -> Item:
    return {**item, "status": status, "content": [text_part(text)]}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}


def new_call(ids: IdSource, tool: WireTool) -> Item:
    """A call without arguments yet."""
    kind, prefix, member = (
        ("custom_tool_call", "ctc_", "input") if tool.custom else ("function_call", "fc_", "arguments")
    )
    item = {"id": ids.new(prefix, 24), "type": kind, "status": IN_PROGRESS, "call_id": ids.new("call_", 24)}
    if tool.namespace is not None:
        item["namespace"] = tool.namespace
    return {**item, "name": tool.name, member: ""}


def with_arguments(item: Item, arguments: str) -> Item:
    return {**item, "status": COMPLETED, "arguments": arguments}


def with_input(item: Item, text: str) -> Item:
    return {**item, "status": COMPLETED, "input": text}


def custom_input(use: ToolUse) -> str:
    """The text that a custom tool is given; where the model wrote other arguments, their JSON."""
    text = use.input.get(CUSTOM_MEMBER)
    return text if isinstance(text, str) else dump_json(use.input).decode()


def tool_named(context: ResponsesContext, name: str) -> WireTool:
    """The tool that the model called by ``name``; it may have made one up."""
    return context.tools.get(name) or WireTool(name)


def output_items(
    parsed: ParsedModelOutput, reason: FinishReason, ids: IdSource, context: ResponsesContext
) -> list[Item]:
    """Reasoning, text, calls; nothing for what is empty."""
    items: list[Item] = []
    if parsed.reasoning:
        items.append(with_summary(new_reasoning(ids), parsed.reasoning))
    if parsed.text:
        items.append(with_text(new_message(ids), parsed.text, status_of(parsed, reason)))
    return items + [_call(use, ids, context) for use in parsed.tool_uses]


def _call(use: ToolUse, ids: IdSource, context: ResponsesContext) -> Item:
    tool = tool_named(context, use.name)
    item = new_call(ids, tool)
    return with_input(item, custom_input(use)) if tool.custom else with_arguments(item, dump_json(use.input).decode())


def status_of(parsed: ParsedModelOutput, reason: FinishReason) -> str:
    return INCOMPLETE if neutral_finish_reason(parsed, reason) == "length" else COMPLETED


def response_body(
    context: ResponsesContext,
    *,
    reply_id: str,
    model: str,
    created: int,
    status: str,
    output: list[Item],
    usage: Usage | None = None,
    error: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The response object at any point of its life."""
    return {
        "id": reply_id,
        "object": "response",
        "created_at": created,
        "status": status,
        "error": error,
        "incomplete_details": {"reason": "max_output_tokens"} if status == INCOMPLETE else None,
        "model": model,
        "output": output,
        **context.repeated,
        "usage": None if usage is None else usage_body(usage),
    }


def response_without_output(
    context: ResponsesContext, status: str, error: AdapterError | None, *, reply_id: str, model: str, created: int
) -> dict[str, Any]:
    """The response object of a reply of which nothing is known, or kept, but how it stands."""
    told = None if error is None else failure(error)
    return response_body(context, reply_id=reply_id, model=model, created=created, status=status, output=[], error=told)


def usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def error_body(error: AdapterError) -> dict[str, Any]:
    """The body of a refusal: as in Chat Completions, under the names of this protocol's fields."""
    body = openai_chat_reply.error_body(error, HISTORY)
    if isinstance(error, PreviousResponseNotFound):
        body["error"] |= {"message": str(error), "code": error.code}
    return body


def failure(error: AdapterError) -> dict[str, Any]:
    """``error`` of a response that failed. Clients read from the code whether another try makes sense."""
    return {"code": _failure_code(error), "message": openai_chat_reply.error_body(error, HISTORY)["error"]["message"]}


def _failure_code(error: AdapterError) -> str:
    match error:
        case PromptTooLong():
            return "context_length_exceeded"
        case TooManyRequests():
            return "rate_limit_exceeded"
        case Gone():
            return error.code
    return "invalid_prompt" if error.status < 500 else "server_error"
