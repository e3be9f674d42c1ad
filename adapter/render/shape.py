"""What shape of messages a chat template reads, found out by rendering a few.

Templates agree on most of a message. They differ in how a tool call stands in it (arguments as an object or as JSON text, content
empty or null beside calls, with an id or without) and in whether they render a system message where it stands. What a template
can't do is put into a form that it can: nothing that a client sent is left out.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from adapter.errors import BadRequest
from adapter.types import Message

Render = Callable[[Sequence[Message]], str]
"""Without a generation prompt."""

_PROBE = "probe-5309"
"""Content that is looked for in rendered text: no template writes it by itself."""


@dataclass(frozen=True, slots=True)
class MessageShape:
    """The shape for one template."""

    arguments_as_text: bool = False
    null_beside_calls: bool = False
    """``content`` of a message with tool calls must be null; its text becomes a message before it."""
    with_ids: bool = False
    """Calls and results must have ids (Mistral's do). They get them by place in the message, so that a suffix has the same."""
    system_in_place: bool = True
    """A system message inside the history is rendered there; else it becomes a part of the user's turn."""

    def apply(self, messages: Sequence[Message]) -> list[Message]:
        """New messages in this shape; those that need no change are shared."""
        if not self.system_in_place:
            messages = folded(messages)
        if self.with_ids:
            messages = identified(messages)
        return [shaped for message in messages for shaped in self._shaped(message)]

    def _shaped(self, message: Message) -> list[Message]:
        if not message.get("tool_calls") or not (self.arguments_as_text or self.null_beside_calls):
            return [message]
        shaped = dict(message)
        if self.arguments_as_text:
            shaped["tool_calls"] = [_with_text_arguments(call) for call in message["tool_calls"]]
        if not self.null_beside_calls:
            return [shaped]
        shaped["content"] = None
        if not message.get("content"):
            return [shaped]
        shaped.pop("reasoning_content", None)
        return [{key: value for key, value in message.items() if key != "tool_calls"}, shaped]


def learn_shape(render: Render) -> MessageShape:
    """The first shape in which the template renders a tool call's arguments; the usual one if there is none."""
    in_place = _renders_system_in_place(render)
    for as_text, null, with_ids in itertools.product((False, True), repeat=3):
        shape = MessageShape(as_text, null, with_ids, in_place)
        if _renders_arguments(render, shape):
            return shape
    return MessageShape(system_in_place=in_place)


def tool_calls(names: Sequence[str], argument: str) -> list[dict[str, Any]]:
    """Tool calls with one argument each, in the neutral form."""
    return [{"type": "function", "function": {"name": name, "arguments": {"x": argument}}} for name in names]


def _renders_arguments(render: Render, shape: MessageShape) -> bool:
    call: Message = {"role": "assistant", "content": "", "tool_calls": tool_calls(["x"], _PROBE)}
    return _PROBE in _text(render, shape.apply([{"role": "user", "content": "x"}, call]))


def _renders_system_in_place(render: Render) -> bool:
    before: list[Message] = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _PROBE}]
    text = _text(render, [*before, {"role": "system", "content": _PROBE[::-1]}, {"role": "user", "content": "z"}])
    return _PROBE in text and text.find(_PROBE[::-1]) > text.index(_PROBE)


def _text(render: Render, messages: Sequence[Message]) -> str:
    try:
        return render(messages)
    except BadRequest:
        return ""


def _with_text_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    text = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def identified(messages: Sequence[Message]) -> list[Message]:
    """The same with ids of nine letters and digits, the form that Mistral's templates insist on."""
    result: list[Message] = []
    place = 0
    for message in messages:
        if message["role"] == "tool":
            message = {**message, "tool_call_id": _call_id(place)}
            place += 1
        elif message.get("tool_calls"):
            calls = [{**call, "id": _call_id(number)} for number, call in enumerate(message["tool_calls"])]
            message = {**message, "tool_calls": calls}
            place = 0
        result.append(message)
    return result


def _call_id(place: int) -> str:
    return f"call{place:05d}"


def folded(messages: Sequence[Message]) -> list[Message]:
    """System messages behind the head as ``<system-reminder>`` parts of the user's turn that they follow or lead.

    A reminder joins the user message before it, or the one that comes next, or is a user message of its own. It never comes between
    a tool call and its results.
    """
    result: list[Message] = []
    waiting: list[str] = []
    for index, message in enumerate(messages):
        if message["role"] != "system" or index == 0:
            _add(result, waiting, message)
        elif result[-1]["role"] == "user":
            result[-1] = _user([result[-1]["content"], _reminder(message)])
        else:
            waiting.append(_reminder(message))
    return [*result, _user(waiting)] if waiting else result


def _add(result: list[Message], waiting: list[str], message: Message) -> None:
    """Add a message behind the reminders that wait for a user's turn."""
    if waiting and message["role"] == "user":
        message = _user([*waiting, message["content"]])
    elif waiting and message["role"] == "assistant":
        result.append(_user(waiting))
    if message["role"] != "tool":
        waiting.clear()
    result.append(message)


def _user(parts: Sequence[str]) -> Message:
    return {"role": "user", "content": "\n".join(parts)}


def _reminder(message: Message) -> str:
    return f"<system-reminder>\n{message['content']}\n</system-reminder>"
