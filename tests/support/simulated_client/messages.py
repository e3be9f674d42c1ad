"""Anthropic Messages, the client's side: requests out, replies in."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from tests.support.simulated_client.entries import Call, Entry, Head, Reminder, Reply, Results, Said, Thought
from tests.support.simulated_client.mangling import in_order, mangled
from tests.support.simulated_client.profile import Profile
from tests.support.simulated_client.writing import Writing

PATH = "/v1/messages"


def write(head: Head, entries: Sequence[Entry], profile: Profile, generator: random.Random) -> dict[str, Any]:
    """The body of a request."""
    writing = Writing(profile, generator, entries[-1].number)
    body: dict[str, Any] = {
        "model": "m",
        "max_tokens": 4000,
        "stream": profile.stream,
        "messages": [_message(entry, head, writing) for entry in entries],
    }
    system = [head.system] if head.system is not None else []
    if profile.billing_header:
        system.insert(0, writing.billing_header)
    if system:
        blocks = [writing.marked({"type": "text", "text": text}, here=True) for text in system]
        body["system"] = blocks if len(blocks) > 1 or profile.cache_markers else system[0]
    if head.tools:
        body["tools"] = [
            {"name": name, "description": name, "input_schema": schema} for name, schema in head.tools.items()
        ]
    return body


def _message(entry: Entry, head: Head, writing: Writing) -> dict[str, Any]:
    match entry:
        case Said(number, text):
            return {"role": "user", "content": writing.content(text, number)}
        case Reminder(number, text):
            return {"role": "system", "content": writing.content(text, number)}
        case Results(number, completed, calls):
            results = in_order(completed, calls, writing.profile.results, writing.generator)
            return {"role": "user", "content": [_result(*result, number, writing) for result in results]}
        case Reply():
            return {"role": "assistant", "content": _reply(entry, head, writing)}


def _result(call_id: str, text: str, number: int, writing: Writing) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": writing.content(text, -1)}
    return writing.marked(block, writing.is_newest(number))


def _reply(reply: Reply, head: Head, writing: Writing) -> str | list[dict[str, Any]]:
    parts = writing.replayed(reply)
    match parts:
        case [str(text)]:
            return writing.content(text, -1)
    return [_block(part, head, writing) for part in parts]


def _block(part: str | Thought | Call, head: Head, writing: Writing) -> dict[str, Any]:
    match part:
        case str():
            return {"type": "text", "text": part}
        case Thought(text, signature):
            return {"type": "thinking", "thinking": text, "signature": signature}
        case Call(call_id, name, arguments):
            value = mangled(arguments, writing.profile, head.tools.get(name, {}), writing.generator)
            return {"type": "tool_use", "id": call_id, "name": name, "input": value}


def read_whole(body: Any) -> list[str | Thought | Call]:
    return [_part(block) for block in body["content"]]


def read_stream(events: Sequence[Any]) -> list[str | Thought | Call]:
    """Raises: ValueError, if the stream is not whole."""
    if not events or events[-1]["type"] != "message_stop":
        raise ValueError(f"the stream ended with {events[-1:]}")
    blocks: dict[int, dict[str, Any]] = {}
    arguments: dict[int, str] = {}
    for event in events:
        match event["type"]:
            case "content_block_start":
                blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                _apply(event["delta"], blocks[event["index"]], arguments, event["index"])
    for index, text in arguments.items():
        blocks[index]["input"] = json.loads(text)
    return [_part(block) for block in blocks.values()]


def _apply(delta: dict[str, Any], block: dict[str, Any], arguments: dict[int, str], index: int) -> None:
    match delta["type"]:
        case "input_json_delta":
            arguments[index] = arguments.get(index, "") + delta["partial_json"]
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            block["signature"] = delta["signature"]


def _part(block: dict[str, Any]) -> str | Thought | Call:
    match block["type"]:
        case "text":
            return str(block["text"])
        case "thinking":
            return Thought(block["thinking"], block["signature"])
        case _:
            return Call(block["id"], block["name"], block["input"])
