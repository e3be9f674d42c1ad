"""Replies as events of objects: ``response``, ``message``, ``content``. The console speaks them, and the live feed of a session.

    {"object":"response","status":"created"}
    {"object":"message","type":"message","status":"in_progress"}
    {"object":"content","type":"text","delta":"..."}                    any number
    {"object":"message","status":"completed"}
    {"object":"response","status":"completed"}

A message's ``type`` is ``message``, ``reasoning``, ``plugin_call`` (a tool call) or ``plugin_call_output`` (its result). The last
two hold one content of type ``data``, whole: ``{"call_id", "name", "arguments"}`` with the arguments as a JSON text, and
``{"call_id", "name", "output"}``. A response that failed ends with ``{"object":"response","status":"failed","error":{"code",
"message"}}``. Messages come one after another, in the order in which the model wrote them.

Source of names and shapes: agentscope-runtime, ``engine/schemas/agent_schemas.py``; of the text events' ``delta`` the description
of the return path of QwenPaw, which has the text in ``delta`` where the runtime has ``"delta": true`` and ``text``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from adapter.errors import AdapterError
from adapter.jsontext import dump_json
from adapter.protocols.common import error_message
from adapter.types import ReasoningDelta, ReplyEvent, TextDelta, ToolCallDelta, ToolCallEnd, ToolCallStart

HISTORY = "input"
"""The field that holds the conversation."""

COMMENT = b": keepalive\n\n"
"""A sign of life that no reader takes for an event."""


class MessageType(StrEnum):
    """What a message is."""

    MESSAGE = "message"
    REASONING = "reasoning"
    PLUGIN_CALL = "plugin_call"
    PLUGIN_CALL_OUTPUT = "plugin_call_output"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a client sent as the result of a call; ``call_id`` and ``name`` where they are known."""

    output: str
    name: str | None = None
    call_id: str | None = None


class SeedEvents:
    """The events of one reply, as frames of a stream. ``more`` are members that every event has at its end."""

    def __init__(self, new_call_id: Callable[[], str], more: Mapping[str, Any] | None = None) -> None:
        self._new_call_id = new_call_id
        more = dict(more or {})
        self._tail = b"," + orjson.dumps(more)[1:] + b"\n\n" if more else b"}\n\n"
        self._open: MessageType | None = None

    def start(self) -> bytes:
        return self._event({"object": "response", "status": "created"})

    def results(self, results: Sequence[ToolResult]) -> bytes:
        """Results of tools that the client sent with its request."""
        return b"".join([self._begin(MessageType.PLUGIN_CALL_OUTPUT) + self._output(result) for result in results])

    def events(self, events: Sequence[ReplyEvent]) -> bytes:
        return b"".join([self._of(event) for event in events])

    def finish(self) -> bytes:
        return self._close() + self._event({"object": "response", "status": "completed"})

    def error(self, error: AdapterError) -> bytes:
        """The message that was under way stays open: it never looks complete."""
        return self._event(failed_response(error))

    def _of(self, event: ReplyEvent) -> bytes:
        match event:
            case TextDelta(text):
                return self._text(MessageType.MESSAGE, text)
            case ReasoningDelta(text):
                return self._text(MessageType.REASONING, text)
            case ToolCallStart():
                return self._begin(MessageType.PLUGIN_CALL)
            case ToolCallDelta():
                return b""
            case ToolCallEnd(use):
                return self._data(call_data(self._new_call_id(), use.name, use.input)) + self._close()

    def _text(self, kind: MessageType, text: str) -> bytes:
        if not text:
            return b""
        begun = b"" if self._open is kind else self._begin(kind)
        return begun + self._event({"object": "content", "type": "text", "delta": text})

    def _output(self, result: ToolResult) -> bytes:
        data = {"call_id": result.call_id, "name": result.name, "output": result.output}
        return self._data({name: value for name, value in data.items() if value is not None}) + self._close()

    def _data(self, data: dict[str, Any]) -> bytes:
        return self._event({"object": "content", "type": "data", "data": data})

    def _begin(self, kind: MessageType) -> bytes:
        closed = self._close()
        self._open = kind
        return closed + self._event({"object": "message", "type": kind.value, "status": "in_progress"})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return self._event({"object": "message", "status": "completed"})

    def _event(self, members: dict[str, Any]) -> bytes:
        return b"data: " + dump_json(members)[:-1] + self._tail


def call_data(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"call_id": call_id, "name": name, "arguments": dump_json(arguments).decode()}


def failed_response(error: AdapterError) -> dict[str, Any]:
    body = {"code": error.code, "message": error_message(error, HISTORY)}
    return {"object": "response", "status": "failed", "error": body}
