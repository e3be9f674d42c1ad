"""OpenAI Chat Completions, the client's side: requests out, replies in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.support.simulated_client.entries import Call, Entry, Head, Reminder, Reply, Results, Said, Thought
from tests.support.simulated_client.mangling import in_order, rewritten
from tests.support.simulated_client.profile import Profile
from tests.support.simulated_client.writing import Writing

PATH = "/v1/chat/completions"


def write(head: Head, entries: Sequence[Entry], profile: Profile, generator: random.Random) -> dict[str, Any]:
    """The body of a request."""
    writing = Writing(profile, generator, entries[-1].number)
    messages: list[dict[str, Any]] = []
    system = "\n".join(
        text for text in (writing.billing_header if profile.billing_header else None, head.system) if text
    )
    if system:
        messages.append({"role": "system", "content": writing.content(system, -1)})
    for entry in entries:
        messages += _messages(entry, head, writing)
    body = {"model": "m", "max_tokens": 4000, "stream": profile.stream, "messages": messages}
    if head.tools:
        body["tools"] = [_tool(name, schema) for name, schema in head.tools.items()]
    return body


def _tool(name: str, schema: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}


def _messages(entry: Entry, head: Head, writing: Writing) -> list[dict[str, Any]]:
    match entry:
        case Said(number, text):
            return [{"role": "user", "content": writing.content(text, number)}]
        case Reminder(number, text):
            return [{"role": "system", "content": writing.content(text, number)}]
        case Results(_, completed, calls):
            results = in_order(completed, calls, writing.profile.results, writing.generator)
            return [
                {"role": "tool", "tool_call_id": call_id, "content": writing.content(text, -1)}
                for call_id, text in results
            ]
        case Reply():
            return [_reply(entry, head, writing)]


def _reply(reply: Reply, head: Head, writing: Writing) -> dict[str, Any]:
    parts = writing.replayed(reply)
    text = "".join(part for part in parts if isinstance(part, str))
    calls = [part for part in parts if isinstance(part, Call)]
    message: dict[str, Any] = {"role": "assistant", "content": writing.content(text, -1) if text else None}
    if not text and not calls:
        message["content"] = ""
    thoughts = [part.text for part in parts if isinstance(part, Thought)]
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = [_call(call, head, writing) for call in calls]
    return message


def _call(call: Call, head: Head, writing: Writing) -> dict[str, Any]:
    arguments = call.arguments
    if not writing.profile.arguments_verbatim:
        arguments = rewritten(arguments, writing.profile, head.tools.get(call.name, {}), writing.generator)
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def read_whole(body: Any) -> list[str | Thought | Call]:
    message = body["choices"][0]["message"]
    calls = [
        Call(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", [])
    ]
    return _parts(message.get("reasoning_content", ""), message["content"] or "", calls)


def read_stream(chunks: Sequence[Any]) -> list[str | Thought | Call]:
    """Raises: ValueError, if the stream is not whole."""
    if not chunks or chunks[-1] != "[DONE]":
        raise ValueError(f"the stream ended with {chunks[-1:]}")
    texts = {"content": "", "reasoning_content": ""}
    calls: dict[int, Call] = {}
    for chunk in chunks[:-1]:
        delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
        for name in texts:
            texts[name] += delta.get(name) or ""
        for piece in delta.get("tool_calls", []):
            calls[piece["index"]] = _extended(calls.get(piece["index"]), piece)
    return _parts(texts["reasoning_content"], texts["content"], list(calls.values()))


def _extended(call: Call | None, piece: dict[str, Any]) -> Call:
    function = piece["function"]
    if call is None:
        return Call(piece["id"], function["name"], function["arguments"])
    return Call(call.call_id, call.name, call.arguments + function["arguments"])


def _parts(reasoning: str, text: str, calls: list[Call]) -> list[str | Thought | Call]:
    parts: list[str | Thought | Call] = [Thought(reasoning)] if reasoning else []
    return [*parts, *([text] if text else []), *calls]
