"""What the protocols share: how neutral messages are built, what a reply is in neutral terms, and JSON text.

How text parts become one string: parts of a user, system or tool message are joined with a newline, empty ones left out.
Text blocks of an assistant message are joined with nothing between them: they are pieces of what the model wrote. A
replayed reply therefore equals its ``manager_message`` (dict equality), whatever blocks the client splits it into.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from adapter.errors import AdapterError
from adapter.types import Message, ParsedModelOutput, Tool
from engine.types import FinishReason


def join_parts(parts: Iterable[str]) -> str:
    """The text of a user, system or tool message."""
    return "\n".join(part for part in parts if part)


def assistant_message(content: str, reasoning: str = "", tool_calls: Sequence[dict[str, Any]] = ()) -> Message:
    """Keys that would be empty are left out, except ``content``."""
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if tool_calls:
        message["tool_calls"] = list(tool_calls)
    return message


def tool_call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def function_tool(name: str, description: str, parameters: dict[str, Any]) -> Tool:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def manager_message(parsed: ParsedModelOutput) -> Message:
    """The reply as the trajectory keeps it: the same for every protocol, and equal to what the next request replays."""
    return assistant_message(
        parsed.text, parsed.reasoning, [tool_call(use.name, use.input) for use in parsed.tool_uses]
    )


def neutral_finish_reason(parsed: ParsedModelOutput, reason: FinishReason) -> str:
    """``stop``, ``length`` or ``tool_calls``. A cancelled generation has no reply: ValueError."""
    if reason is FinishReason.CANCELLED:
        raise ValueError("a cancelled generation is not a complete reply")
    if parsed.tool_uses:
        return "tool_calls"
    return "length" if reason is FinishReason.LENGTH else "stop"


NEUTRAL_HISTORY = "messages"
"""The field that an error about the conversation as a whole names where no protocol is known."""


def field_of(error: AdapterError, history: str = NEUTRAL_HISTORY) -> str | None:
    """The field that is wrong; ``history`` is the protocol's own name of what holds the conversation."""
    return history if error.field == NEUTRAL_HISTORY else error.field


def error_message(error: AdapterError, history: str = NEUTRAL_HISTORY) -> str:
    """The message for the client, which names the field in any case, as ``field_of`` does."""
    message, field = str(error), field_of(error, history)
    if field is None or message.startswith(field):
        return message
    return f"{field}: {message}"
