"""OpenAI Responses, the streamed reply: neutral events become the official event sequence, numbered from 0.

    response.created, response.in_progress, an item*, response.completed | response.incomplete | response.failed

    reasoning   output_item.added, reasoning_summary_part.added, reasoning_summary_text.delta* .done, reasoning_summary_part.done,
                output_item.done
    message     output_item.added, content_part.added, output_text.delta* .done, content_part.done, output_item.done
    call        output_item.added, function_call_arguments.delta* .done, output_item.done
    custom call output_item.added, custom_tool_call_input.delta* .done, output_item.done

Every frame has its ``event:`` line. Items come in the order in which the model wrote them, so text after a call is a message of its
own here, while the whole body has all text in one message. The keepalive is the second event once more: Codex counts events with
data only, and for the official SDK it changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from adapter.errors import AdapterError
from adapter.ids import IdSource
from adapter.jsontext import dump_json
from adapter.protocols import openai_responses_reply as replies
from adapter.protocols.openai_responses_custom import CustomInput
from adapter.protocols.openai_responses_reply import Item
from adapter.protocols.openai_responses_request import ResponsesContext
from adapter.types import (
    ParsedModelOutput,
    ReasoningDelta,
    ReplyEvent,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolUse,
    Usage,
)
from engine.types import FinishReason

_TEXT = "response.output_text"
_SUMMARY = "response.reasoning_summary_text"
_ARGUMENTS = "response.function_call_arguments"
_CUSTOM_INPUT = "response.custom_tool_call_input"


@dataclass(slots=True)
class _OpenItem:
    """The item that deltas go to. ``place`` are the members that say where, in all of its events."""

    item: Item
    kind: str
    """What the names of its delta events begin with."""
    place: dict[str, Any]
    prefix: bytes
    """A delta's frame up to its number, and ``middle`` from there to its text."""
    middle: bytes
    texts: list[str] = field(default_factory=list)
    custom: CustomInput = field(default_factory=CustomInput)
    """Reads the arguments of a custom tool's call."""


class ResponsesStream:
    """One streamed reply (``base.ReplyStream``). ``_output`` are the items that are done."""

    def __init__(self, *, reply_id: str, model: str, ids: IdSource, created: int, context: ResponsesContext) -> None:
        self._head: dict[str, Any] = {"reply_id": reply_id, "model": model, "created": created}
        self._ids = ids
        self._context = context
        self._number = 0
        self._output: list[Item] = []
        self._open: _OpenItem | None = None

    def start(self, input_tokens: int) -> bytes:
        return self._response("response.created", replies.IN_PROGRESS) + self._response(
            "response.in_progress", replies.IN_PROGRESS
        )

    def events(self, events: Sequence[ReplyEvent]) -> bytes:
        return b"".join([self._event(event) for event in events])

    def keepalive(self) -> bytes:
        body = replies.response_body(self._context, status=replies.IN_PROGRESS, output=[], **self._head)
        return _frame("response.in_progress", 1, {"response": body})

    def finish(self, parsed: ParsedModelOutput, reason: FinishReason, usage: Usage) -> bytes:
        status = replies.status_of(parsed, reason)
        frames = self._close(status) + self._response(f"response.{status}", status, usage=usage)
        # Whoever keeps the reply to read it again keeps this stream too, and shall not keep the request's tools with it.
        self._context, self._output = ResponsesContext.of(None), []
        return frames

    def error(self, error: AdapterError) -> bytes:
        return self._response("response.failed", replies.FAILED, error=replies.failure(error))

    def _event(self, event: ReplyEvent) -> bytes:
        match event:
            case TextDelta(text):
                return self._prose(_TEXT, text)
            case ReasoningDelta(text):
                return self._prose(_SUMMARY, text)
            case ToolCallStart(name):
                return self._begin_call(name)
            case ToolCallDelta(arguments):
                opened = self._open
                assert opened is not None
                return self._delta(opened.custom.feed(arguments) if opened.kind == _CUSTOM_INPUT else arguments)
            case ToolCallEnd(use):
                return self._end_call(use)

    def _prose(self, kind: str, text: str) -> bytes:
        if not text:
            return b""
        if self._open is not None and self._open.kind == kind:
            return self._delta(text)
        frames = self._close()
        if kind == _TEXT:
            frames += self._begin(replies.new_message(self._ids), kind, {"content_index": 0})
            frames += self._placed("response.content_part.added", {"part": replies.text_part("")})
        else:
            frames += self._begin(replies.new_reasoning(self._ids), kind, {"summary_index": 0})
            frames += self._placed("response.reasoning_summary_part.added", {"part": replies.summary_part("")})
        return frames + self._delta(text)

    def _begin_call(self, name: str) -> bytes:
        tool = replies.tool_named(self._context, name)
        kind = _CUSTOM_INPUT if tool.custom else _ARGUMENTS
        return self._close() + self._begin(replies.new_call(self._ids, tool), kind, {})

    def _end_call(self, use: ToolUse) -> bytes:
        """What the deltas did not say yet goes out with the end: the client must be able to use the call in any case."""
        opened = self._open
        assert opened is not None
        if opened.kind == _CUSTOM_INPUT:
            text, given = replies.custom_input(use), "".join(opened.texts)
            # The input of a call that broke off is not what was streamed of it.
            missing = self._delta(text.removeprefix(given)) if text.startswith(given) else b""
            opened.texts = [text]
        else:
            missing = b"" if opened.texts else self._delta(dump_json(use.input).decode())
        return missing + self._close()

    def _begin(self, item: Item, kind: str, place: dict[str, Any]) -> bytes:
        index = len(self._output)
        place = {"item_id": item["id"], "output_index": index, **place}
        prefix = f'event: {kind}.delta\ndata: {{"type":"{kind}.delta","sequence_number":'.encode()
        middle = b"," + orjson.dumps(place)[1:-1] + b',"delta":'
        self._open = _OpenItem(item, kind, place, prefix, middle)
        return self._next("response.output_item.added", {"output_index": index, "item": item})

    def _delta(self, text: str) -> bytes:
        opened = self._open
        assert opened is not None
        if not text:
            return b""
        opened.texts.append(text)
        end = b',"logprobs":[]}\n\n' if opened.kind == _TEXT else b"}\n\n"
        frame = opened.prefix + str(self._number).encode() + opened.middle + dump_json(text) + end
        self._number += 1
        return frame

    def _close(self, status: str = replies.COMPLETED) -> bytes:
        """End the open item. ``status`` is for a message that may have been cut off."""
        opened = self._open
        if opened is None:
            return b""
        text = "".join(opened.texts)
        match opened.kind:
            case "response.output_text":
                item = replies.with_text(opened.item, text, status)
                frames = self._placed(f"{_TEXT}.done", {"text": text, "logprobs": []})
                frames += self._placed("response.content_part.done", {"part": replies.text_part(text)})
            case "response.reasoning_summary_text":
                item = replies.with_summary(opened.item, text)
                frames = self._placed(f"{_SUMMARY}.done", {"text": text})
                frames += self._placed("response.reasoning_summary_part.done", {"part": replies.summary_part(text)})
            case "response.custom_tool_call_input":
                item = replies.with_input(opened.item, text)
                frames = self._placed(f"{_CUSTOM_INPUT}.done", {"input": text})
            case _:
                item = replies.with_arguments(opened.item, text)
                frames = self._placed(f"{_ARGUMENTS}.done", {"arguments": text})
        self._open = None
        self._output.append(item)
        return frames + self._next(
            "response.output_item.done", {"output_index": opened.place["output_index"], "item": item}
        )

    def _response(self, name: str, status: str, **members: Any) -> bytes:
        body = replies.response_body(self._context, status=status, output=self._output, **self._head, **members)
        return self._next(name, {"response": body})

    def _placed(self, name: str, members: dict[str, Any]) -> bytes:
        """An event of the open item."""
        assert self._open is not None
        return self._next(name, {**self._open.place, **members})

    def _next(self, name: str, members: dict[str, Any]) -> bytes:
        frame = _frame(name, self._number, members)
        self._number += 1
        return frame


def _frame(name: str, number: int, members: dict[str, Any]) -> bytes:
    event = {"type": name, "sequence_number": number, **members}
    return b"event: " + name.encode() + b"\ndata: " + dump_json(event) + b"\n\n"
