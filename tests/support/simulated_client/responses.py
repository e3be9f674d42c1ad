"""OpenAI Responses, the client's side: requests out, replies in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.support.simulated_client.entries import Call, Entry, Head, Reminder, Reply, Results, Said, Thought
from tests.support.simulated_client.mangling import in_order, rewritten
from tests.support.simulated_client.profile import Profile
from tests.support.simulated_client.writing import Writing

PATH = "/v1/responses"


def write(head: Head, entries: Sequence[Entry], profile: Profile, generator: random.Random) -> dict[str, Any]:
    """The body of a request. The system prompt is the first item, as agent programs write it."""
    writing = Writing(profile, generator, entries[-1].number)
    items = [] if head.system is None else [_message("developer", head.system, -1, writing)]
    for entry in entries:
        items += _items(entry, head, writing)
    body = {"model": "m", "max_output_tokens": 4000, "stream": profile.stream, "store": False, "input": items}
    if head.tools:
        body["tools"] = [_tool(name, schema) for name, schema in head.tools.items()]
    return body


def _tool(name: str, schema: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "description": name, "strict": False, "parameters": schema}


def _items(entry: Entry, head: Head, writing: Writing) -> list[dict[str, Any]]:
    match entry:
        case Said(number, text):
            return [_message("user", text, number, writing)]
        case Reminder(number, text):
            return [_message("developer", text, number, writing)]
        case Results(_, completed, calls):
            results = in_order(completed, calls, writing.profile.results, writing.generator)
            return [{"type": "function_call_output", "call_id": call_id, "output": text} for call_id, text in results]
        case Reply():
            # What the client left nothing of is still a turn of the model's.
            items = [_item(part, head, writing) for part in writing.replayed(entry)]
            return items or [_message("assistant", "", -1, writing)]


def _message(role: str, text: str, number: int, writing: Writing) -> dict[str, Any]:
    content = writing.content(text, number)
    if not isinstance(content, str):
        kind = "output_text" if role == "assistant" else "input_text"
        content = [{**block, "type": kind} for block in content]
    return {"type": "message", "role": role, "content": content}


def _item(part: str | Thought | Call, head: Head, writing: Writing) -> dict[str, Any]:
    match part:
        case str():
            return _message("assistant", part, -1, writing)
        case Thought(text, signature):
            summary = [{"type": "summary_text", "text": text}]
            return {"type": "reasoning", "summary": summary, "encrypted_content": signature}
        case Call(call_id, name, arguments):
            if not writing.profile.arguments_verbatim:
                arguments = rewritten(arguments, writing.profile, head.tools.get(name, {}), writing.generator)
            return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def read_whole(body: Any) -> list[str | Thought | Call]:
    return [_part(item) for item in body["output"]]


def read_stream(events: Sequence[Any]) -> list[str | Thought | Call]:
    """Items as they were completed, which is what Codex reads. Raises: ValueError, if the stream is not whole."""
    if not events or events[-1]["type"] not in ("response.completed", "response.incomplete"):
        raise ValueError(f"the stream ended with {events[-1:]}")
    return [_part(event["item"]) for event in events if event["type"] == "response.output_item.done"]


def _part(item: dict[str, Any]) -> str | Thought | Call:
    match item["type"]:
        case "message":
            return "".join(part["text"] for part in item["content"])
        case "reasoning":
            return Thought("".join(part["text"] for part in item["summary"]), item["encrypted_content"])
        case _:
            return Call(item["call_id"], item["name"], item["arguments"])
