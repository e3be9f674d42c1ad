"""Four protocols as agents speak them: a conversation's next request, and the reading of its streamed reply. Does no I/O.

Formats: the official references of Anthropic's Messages, OpenAI's Chat Completions and Responses, and Google's Gemini API.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Iterable, Iterator
from typing import Any

Json = dict[str, Any]
TOOL = "read_file"
SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string", "description": "The file."}},
    "required": ["path"],
}
DESCRIPTION = "Read a file of the project and give its text."
MAX_TOKENS = 40_000


class BadReply(Exception):
    """The stream says that it failed, or is not what the protocol says."""


def spoken(text: str, calls: Iterable[tuple[str, Any]]) -> str:
    """A reply in the form in which protocols can be compared: its text, then each call's name and arguments."""
    return text + "".join(f"<{name} {json.dumps(arguments, sort_keys=True)}>" for name, arguments in calls)


class SseReader:
    """Bytes in, the JSON of ``data:`` lines out; lines may come in any pieces. ``[DONE]`` comes as None."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Json | None]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                value = line[5:].strip()
                yield None if value == b"[DONE]" else json.loads(value)


class Conversation(abc.ABC):
    """One root of a session. A reply is taken in event by event, and goes into the history only by ``keep``."""

    protocol: str
    path: str

    def __init__(self, system: str) -> None:
        self.system = system
        self.history: list[Json] = []
        self.begin()

    def begin(self) -> None:
        """A reply begins: what was read of another is forgotten."""
        self.complete = False
        self.output_tokens = 0
        self._parts: list[Json] = []

    @abc.abstractmethod
    def say(self, text: str) -> None:
        """Put new input behind the history: the result of the open call, if there is one, else a user message."""

    @abc.abstractmethod
    def body(self) -> Json:
        """Of the request for the next reply."""

    @abc.abstractmethod
    def take(self, event: Json | None) -> bool:
        """One event of the reply; whether it carries output. Raises: BadReply."""

    def keep(self) -> None:
        """Put the complete reply into the history."""
        self.history += self.message()

    @abc.abstractmethod
    def message(self) -> list[Json]:
        """The complete reply as it goes into the history."""

    @abc.abstractmethod
    def said(self) -> str:
        """The complete reply as ``spoken``."""


class Messages(Conversation):
    """Anthropic Messages."""

    protocol, path = "anthropic", "/v1/messages"

    def say(self, text: str) -> None:
        last = self.history[-1]["content"][-1] if self.history else {}
        if last.get("type") == "tool_use":
            content = [{"type": "tool_result", "tool_use_id": last["id"], "content": text}]
        else:
            content = [{"type": "text", "text": text}]
        self.history.append({"role": "user", "content": content})

    def body(self) -> Json:
        tool = {"name": TOOL, "description": DESCRIPTION, "input_schema": SCHEMA}
        common = {"model": "rollserve", "max_tokens": MAX_TOKENS, "stream": True}
        return {**common, "system": self.system, "tools": [tool], "messages": self.history}

    def take(self, event: Json | None) -> bool:
        match event:
            case {"type": "error"}:
                raise BadReply(str(event))
            case {"type": "content_block_start", "content_block": block}:
                self._parts.append({**block, "partial": ""})
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}:
                self._parts[-1]["text"] += text
                return True
            case {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": text}}:
                self._parts[-1]["partial"] += text
                return True
            case {"type": "message_delta", "usage": usage}:
                self.output_tokens = usage["output_tokens"]
            case {"type": "message_stop"}:
                self.complete = True
        return False

    def message(self) -> list[Json]:
        blocks = []
        for part in self._parts:
            block = {key: value for key, value in part.items() if key != "partial"}
            arguments = {"input": json.loads(part["partial"] or "{}")} if part["type"] == "tool_use" else {}
            blocks.append({**block, **arguments})
        return [{"role": "assistant", "content": blocks}]

    def said(self) -> str:
        blocks = self.message()[0]["content"]
        calls = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
        return spoken("".join(block["text"] for block in blocks if block["type"] == "text"), calls)


class Chat(Conversation):
    """OpenAI Chat Completions."""

    protocol, path = "chat", "/v1/chat/completions"

    def say(self, text: str) -> None:
        calls = self.history[-1].get("tool_calls") if self.history else None
        head = {"role": "tool", "tool_call_id": calls[-1]["id"]} if calls else {"role": "user"}
        self.history.append({**head, "content": text})

    def body(self) -> Json:
        tool = {"type": "function", "function": {"name": TOOL, "description": DESCRIPTION, "parameters": SCHEMA}}
        common = {
            "model": "rollserve",
            "max_tokens": MAX_TOKENS,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return {**common, "tools": [tool], "messages": [{"role": "system", "content": self.system}, *self.history]}

    def take(self, event: Json | None) -> bool:
        if event is None:
            self.complete = bool(self._parts) and self._finished
            return False
        if "error" in event:
            raise BadReply(str(event))
        if event.get("usage"):
            self.output_tokens = event["usage"]["completion_tokens"]
        for choice in event["choices"]:
            self._finished = self._finished or choice.get("finish_reason") is not None
            self._parts.append(choice["delta"])
            return bool(choice["delta"].get("content") or choice["delta"].get("tool_calls"))
        return False

    def begin(self) -> None:
        super().begin()
        self._finished = False

    def message(self) -> list[Json]:
        text = "".join(part.get("content") or "" for part in self._parts)
        calls: dict[int, Json] = {}
        for piece in (piece for part in self._parts for piece in part.get("tool_calls") or ()):
            function = piece.get("function", {})
            if piece["index"] not in calls:
                named = {"name": function["name"], "arguments": ""}
                calls[piece["index"]] = {"id": piece["id"], "type": "function", "function": named}
            calls[piece["index"]]["function"]["arguments"] += function.get("arguments") or ""
        called = {"tool_calls": list(calls.values())} if calls else {}
        return [{"role": "assistant", "content": text, **called}]

    def said(self) -> str:
        message = self.message()[0]
        functions = [call["function"] for call in message.get("tool_calls", ())]
        return spoken(message["content"], [(each["name"], json.loads(each["arguments"])) for each in functions])


class Responses(Conversation):
    """OpenAI Responses, without a store: the whole history each turn."""

    protocol, path = "responses", "/v1/responses"

    def say(self, text: str) -> None:
        last = self.history[-1] if self.history else {}
        if last.get("type") == "function_call":
            self.history.append({"type": "function_call_output", "call_id": last["call_id"], "output": text})
        else:
            self.history.append({"type": "message", "role": "user", "content": text})

    def body(self) -> Json:
        tool = {"type": "function", "name": TOOL, "description": DESCRIPTION, "parameters": SCHEMA, "strict": False}
        common = {"model": "rollserve", "stream": True, "store": False, "instructions": self.system}
        return {**common, "tools": [tool], "input": self.history}

    def take(self, event: Json | None) -> bool:
        match event:
            case {"type": "response.failed" | "error"}:
                raise BadReply(str(event))
            case {"type": "response.completed" | "response.incomplete", "response": response}:
                self._parts = response["output"]
                self.output_tokens = response["usage"]["output_tokens"]
                self.complete = True
            case {"type": "response.output_text.delta" | "response.function_call_arguments.delta"}:
                return True
        return False

    def message(self) -> list[Json]:
        return self._parts

    def said(self) -> str:
        messages = [item for item in self._parts if item["type"] == "message"]
        calls = [item for item in self._parts if item["type"] == "function_call"]
        text = "".join(part["text"] for message in messages for part in message["content"])
        return spoken(text, [(call["name"], json.loads(call["arguments"])) for call in calls])


class Gemini(Conversation):
    """Google's Gemini API."""

    protocol, path = "gemini", "/v1beta/models/rollserve:streamGenerateContent?alt=sse"

    def say(self, text: str) -> None:
        call = self.history[-1]["parts"][-1].get("functionCall") if self.history else None
        part: Json = {"text": text}
        if call:
            identity = {"id": call["id"]} if "id" in call else {}
            part = {"functionResponse": {**identity, "name": call["name"], "response": {"output": text}}}
        self.history.append({"role": "user", "parts": [part]})

    def body(self) -> Json:
        tool = {"name": TOOL, "description": DESCRIPTION, "parametersJsonSchema": SCHEMA}
        instruction = {"parts": [{"text": self.system}]}
        return {
            "systemInstruction": instruction,
            "tools": [{"functionDeclarations": [tool]}],
            "contents": self.history,
            "generationConfig": {"maxOutputTokens": MAX_TOKENS},
        }

    def take(self, event: Json | None) -> bool:
        if event is None or "error" in event:
            raise BadReply(str(event))
        self.output_tokens = event.get("usageMetadata", {}).get("candidatesTokenCount", self.output_tokens)
        carried = False
        for candidate in event.get("candidates", ()):
            parts = candidate.get("content", {}).get("parts", ())
            self._parts += parts
            carried = carried or any(part.get("text") or "functionCall" in part for part in parts)
            self.complete = self.complete or "finishReason" in candidate
        return carried

    def message(self) -> list[Json]:
        parts: list[Json] = []
        for part in self._parts:
            if set(part) == {"text"} and parts and set(parts[-1]) == {"text"}:
                parts[-1] = {"text": parts[-1]["text"] + part["text"]}
            elif part != {"text": ""}:
                parts.append(part)
        return [{"role": "model", "parts": parts}]

    def said(self) -> str:
        calls = [part["functionCall"] for part in self._parts if "functionCall" in part]
        text = "".join(part.get("text", "") for part in self._parts)
        return spoken(text, [(call["name"], call["args"]) for call in calls])


CONVERSATIONS: tuple[type[Conversation], ...] = (Messages, Chat, Responses, Gemini)
