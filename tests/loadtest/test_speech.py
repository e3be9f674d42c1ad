"""Streams are read in any pieces; what was read goes back into the next request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadtest.speech import CONVERSATIONS, BadReply, Chat, Conversation, Gemini, Messages, Responses, SseReader

CALL = {"name": "read_file", "arguments": '{"path": "a"}'}
STREAMS: dict[type[Conversation], list[dict[str, Any]]] = {
    Messages: [
        {"type": "message_start", "message": {}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_start", "index": 1,
         "content_block": {"type": "tool_use", "id": "c1", "name": "read_file", "input": {}}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"path"'}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": ': "a"}'}},
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ],
    Chat: [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": "Hi"}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c1", "function": {**CALL, "arguments": '{"path"'}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": ': "a"}'}}]}}]},
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"completion_tokens": 7}},
    ],
    Responses: [
        {"type": "response.output_text.delta", "delta": "Hi"},
        {"type": "response.function_call_arguments.delta", "delta": "{"},
        {"type": "response.function_call_arguments.delta", "delta": "}"},
        {"type": "response.completed", "response": {"usage": {"output_tokens": 7}, "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]},
            {"type": "function_call", "call_id": "c1", **CALL}]}},
    ],
    Gemini: [
        {"candidates": [{"content": {"parts": [{"text": "H"}]}}]},
        {"candidates": [{"content": {"parts": [{"text": "i"}]}}]},
        {"candidates": [{"content": {"parts": [{"functionCall": {"id": "c1", "name": "read_file", "args": {"path": "a"}}}]},
                         "finishReason": "STOP"}], "usageMetadata": {"candidatesTokenCount": 7}},
    ],
}  # fmt: skip
REPLIES: dict[type[Conversation], list[dict[str, Any]]] = {
    Messages: [
        {"role": "assistant", "content": [
            {"type": "text", "text": "Hi"},
            {"type": "tool_use", "id": "c1", "name": "read_file", "input": {"path": "a"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "the file"}]},
    ],
    Chat: [
        {"role": "assistant", "content": "Hi", "tool_calls": [{"id": "c1", "type": "function", "function": CALL}]},
        {"role": "tool", "tool_call_id": "c1", "content": "the file"},
    ],
    Responses: [
        *STREAMS[Responses][-1]["response"]["output"],
        {"type": "function_call_output", "call_id": "c1", "output": "the file"},
    ],
    Gemini: [
        {"role": "model", "parts": [
            {"text": "Hi"}, {"functionCall": {"id": "c1", "name": "read_file", "args": {"path": "a"}}}]},
        {"role": "user", "parts": [
            {"functionResponse": {"id": "c1", "name": "read_file", "response": {"output": "the file"}}}]},
    ],
}  # fmt: skip


def wire(speaks: type[Conversation]) -> bytes:
    events = "".join(f"event: x\ndata: {json.dumps(event)}\n\n" for event in STREAMS[speaks])
    return (": ping\n\n" + events + ("data: [DONE]\n\n" if speaks is Chat else "")).encode()


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("speaks", CONVERSATIONS)
def test_a_reply_in_any_pieces_goes_into_the_history(speaks: type[Conversation], size: int) -> None:
    conversation, reader, data = speaks("You are an agent."), SseReader(), wire(speaks)
    conversation.say("Read a.")
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    carried = sum(conversation.take(event) for piece in pieces for event in reader.feed(piece))
    assert carried == 3
    assert conversation.complete
    assert conversation.output_tokens == 7
    assert conversation.said() == 'Hi<read_file {"path": "a"}>'
    conversation.keep()
    conversation.say("the file")
    assert conversation.history[1:] == REPLIES[speaks]
    assert "You are an agent." in json.dumps(conversation.body())


@pytest.mark.parametrize("speaks", CONVERSATIONS)
def test_a_reply_without_its_end_is_not_complete(speaks: type[Conversation]) -> None:
    conversation = speaks("")
    for event in STREAMS[speaks][:-1]:
        conversation.take(event)
    assert not conversation.complete
    conversation.begin()
    assert conversation.output_tokens == 0


@pytest.mark.parametrize(
    ("speaks", "event"),
    [
        (Messages, {"type": "error"}),
        (Chat, {"error": {}}),
        (Responses, {"type": "response.failed"}),
        (Gemini, {"error": {}}),
    ],
)
def test_an_error_event_is_an_error(speaks: type[Conversation], event: dict[str, Any]) -> None:
    with pytest.raises(BadReply):
        speaks("").take(event)
