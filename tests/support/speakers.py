"""One conversation in the words of each protocol: a client that asks over any of them, and reads the reply into the same terms."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """A call, with the id that the reply gave it."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Said:
    """A reply. ``signature`` goes back with the thinking, where the protocol has one."""

    thinking: str
    text: str
    calls: tuple[Call, ...] = ()
    signature: str = ""


@dataclass(frozen=True)
class Asks:
    text: str


@dataclass(frozen=True)
class Results:
    """The text of each result, by the call."""

    texts: tuple[tuple[Call, str], ...]


Entry = Asks | Said | Results


@dataclass(frozen=True)
class Settings:
    """What every request of a conversation says."""

    system: str
    tools: tuple[tuple[str, str, dict[str, Any]], ...]
    """Name, description, JSON schema."""
    max_tokens: int
    temperature: float
    seed: int


class Speaker(ABC):
    """One protocol. ``path`` goes behind the session's URL."""

    path: str

    def body(self, settings: Settings, entries: Sequence[Entry]) -> dict[str, Any]:
        items = [item for entry in entries for item in self._entry(entry)]
        return self._request(settings, items)

    def _entry(self, entry: Entry) -> list[dict[str, Any]]:
        match entry:
            case Asks(text):
                return [self._user(text)]
            case Results(texts):
                return self._results(texts)
            case Said():
                return self._said(entry)

    @abstractmethod
    def read(self, body: dict[str, Any]) -> Said: ...

    @abstractmethod
    def _request(self, settings: Settings, items: list[dict[str, Any]]) -> dict[str, Any]: ...

    @abstractmethod
    def _user(self, text: str) -> dict[str, Any]: ...

    @abstractmethod
    def _said(self, said: Said) -> list[dict[str, Any]]: ...

    @abstractmethod
    def _results(self, texts: Sequence[tuple[Call, str]]) -> list[dict[str, Any]]: ...


class Messages(Speaker):
    path = "/v1/messages"

    def read(self, body: dict[str, Any]) -> Said:
        thinking = [block for block in body["content"] if block["type"] == "thinking"]
        return Said(
            "".join(block["thinking"] for block in thinking),
            "".join(block["text"] for block in body["content"] if block["type"] == "text"),
            tuple(Call(b["id"], b["name"], b["input"]) for b in body["content"] if b["type"] == "tool_use"),
            "".join(block["signature"] for block in thinking),
        )

    def _request(self, settings: Settings, items: list[dict[str, Any]]) -> dict[str, Any]:
        tools = [{"name": name, "description": text, "input_schema": schema} for name, text, schema in settings.tools]
        return {
            "system": [{"type": "text", "text": settings.system}], "messages": items, "tools": tools,
            "max_tokens": settings.max_tokens, "temperature": settings.temperature, "seed": settings.seed,
        }  # fmt: skip

    def _user(self, text: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "text", "text": text}]}

    def _said(self, said: Said) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        if said.thinking:
            blocks.append({"type": "thinking", "thinking": said.thinking, "signature": said.signature})
        if said.text:
            blocks.append({"type": "text", "text": said.text})
        blocks += [{"type": "tool_use", "id": c.id, "name": c.name, "input": c.arguments} for c in said.calls]
        return [{"role": "assistant", "content": blocks}]

    def _results(self, texts: Sequence[tuple[Call, str]]) -> list[dict[str, Any]]:
        blocks = [{"type": "tool_result", "tool_use_id": call.id, "content": text} for call, text in texts]
        return [{"role": "user", "content": blocks}]


class Chat(Speaker):
    path = "/v1/chat/completions"

    def read(self, body: dict[str, Any]) -> Said:
        message = body["choices"][0]["message"]
        calls = [(call["id"], call["function"]) for call in message.get("tool_calls", [])]
        return Said(
            message.get("reasoning_content", ""),
            message["content"] or "",
            tuple(Call(call_id, made["name"], json.loads(made["arguments"])) for call_id, made in calls),
        )

    def _request(self, settings: Settings, items: list[dict[str, Any]]) -> dict[str, Any]:
        tools = [
            {"type": "function", "function": {"name": name, "description": text, "parameters": schema}}
            for name, text, schema in settings.tools
        ]
        return {
            "messages": [{"role": "system", "content": settings.system}, *items], "tools": tools,
            "max_completion_tokens": settings.max_tokens, "temperature": settings.temperature, "seed": settings.seed,
        }  # fmt: skip

    def _user(self, text: str) -> dict[str, Any]:
        return {"role": "user", "content": text}

    def _said(self, said: Said) -> list[dict[str, Any]]:
        message: dict[str, Any] = {"role": "assistant", "content": said.text, "reasoning_content": said.thinking}
        if said.calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
                for c in said.calls
            ]
        return [message]

    def _results(self, texts: Sequence[tuple[Call, str]]) -> list[dict[str, Any]]:
        return [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in texts]


class Responses(Speaker):
    path = "/v1/responses"

    def read(self, body: dict[str, Any]) -> Said:
        thoughts = [item for item in body["output"] if item["type"] == "reasoning"]
        said = [item for item in body["output"] if item["type"] == "message"]
        calls = [item for item in body["output"] if item["type"] == "function_call"]
        return Said(
            "".join(part["text"] for item in thoughts for part in item["summary"]),
            "".join(part["text"] for item in said for part in item["content"]),
            tuple(Call(item["call_id"], item["name"], json.loads(item["arguments"])) for item in calls),
            "".join(item["encrypted_content"] for item in thoughts),
        )

    def _request(self, settings: Settings, items: list[dict[str, Any]]) -> dict[str, Any]:
        tools = [
            {"type": "function", "name": name, "description": text, "parameters": schema, "strict": False}
            for name, text, schema in settings.tools
        ]
        return {
            "instructions": settings.system, "input": items, "tools": tools, "store": False,
            "max_output_tokens": settings.max_tokens, "temperature": settings.temperature, "seed": settings.seed,
        }  # fmt: skip

    def _user(self, text: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "input_text", "text": text}]}

    def _said(self, said: Said) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        if said.thinking:
            summary = [{"type": "summary_text", "text": said.thinking}]
            items.append({"type": "reasoning", "summary": summary, "encrypted_content": said.signature})
        if said.text:
            items.append({"role": "assistant", "content": [{"type": "output_text", "text": said.text}]})
        items += [
            {"type": "function_call", "call_id": c.id, "name": c.name, "arguments": json.dumps(c.arguments)}
            for c in said.calls
        ]
        return items

    def _results(self, texts: Sequence[tuple[Call, str]]) -> list[dict[str, Any]]:
        return [{"type": "function_call_output", "call_id": call.id, "output": text} for call, text in texts]


class Gemini(Speaker):
    """Replays no signature: its place is at a part, and a part is not what a reply is read into here."""

    def __init__(self, model: str) -> None:
        self.path = f"/v1beta/models/{model}:generateContent"

    def read(self, body: dict[str, Any]) -> Said:
        parts = body["candidates"][0]["content"]["parts"]
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        return Said(
            "".join(part["text"] for part in parts if part.get("thought")),
            "".join(part["text"] for part in parts if "text" in part and not part.get("thought")),
            tuple(Call(call["id"], call["name"], call["args"]) for call in calls),
        )

    def _request(self, settings: Settings, items: list[dict[str, Any]]) -> dict[str, Any]:
        tools = [
            {"name": name, "description": text, "parametersJsonSchema": schema} for name, text, schema in settings.tools
        ]
        return {
            "systemInstruction": {"parts": [{"text": settings.system}]},
            "contents": items,
            "tools": [{"functionDeclarations": tools}],
            "generationConfig": {
                "maxOutputTokens": settings.max_tokens, "temperature": settings.temperature, "seed": settings.seed,
                "thinkingConfig": {"includeThoughts": True},
            },
        }  # fmt: skip

    def _user(self, text: str) -> dict[str, Any]:
        return {"role": "user", "parts": [{"text": text}]}

    def _said(self, said: Said) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        if said.thinking:
            parts.append({"text": said.thinking, "thought": True})
        if said.text:
            parts.append({"text": said.text})
        parts += [{"functionCall": {"id": c.id, "name": c.name, "args": c.arguments}} for c in said.calls]
        return [{"role": "model", "parts": parts}]

    def _results(self, texts: Sequence[tuple[Call, str]]) -> list[dict[str, Any]]:
        parts = [
            {"functionResponse": {"id": call.id, "name": call.name, "response": {"output": text}}}
            for call, text in texts
        ]
        return [{"role": "user", "parts": parts}]
