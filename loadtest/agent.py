"""An agent as the benchmarks need it: Anthropic Messages, streamed; a system prompt, 20 tools, one call and one result a turn.

It sends its whole history each turn, as agents do, and puts into it what the server replied. Sizes are in tokens of the tokenizer
that the server uses.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from tokenizers import Tokenizer

SYSTEM_TOKENS, RESULT_TOKENS, OUTPUT_TOKENS = 6_000, 800, 60
TOOLS = 20
FIRST = b"content_block_delta"
LINE = "src/module_{n}.py:{n}: def handler_{n}(request, *, retries={n}): return dispatch(request, timeout=2.5)\n"


class BadReply(Exception):
    """The server did not give what the script says."""


class Writer:
    """Texts of given sizes, each different. ``folder`` has the tokenizer."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._count = 0

    def text(self, tokens: int) -> str:
        """About ``tokens`` tokens."""
        self._count += 1
        line = LINE.format(n=self._count * 1000)
        lines = max(1, round(tokens / self._size(line)))
        return "".join(LINE.format(n=self._count * 1000 + place) for place in range(lines))

    def reply(self, tokens: int = OUTPUT_TOKENS) -> str:
        """A text and one call, in the Hermes form, together about ``tokens`` tokens."""
        call = (
            '<tool_call>\n{"name": "tool_1", "arguments": {"path": "src/module_1.py", "pattern": "def"}}\n</tool_call>'
        )
        words = "Let me look at this"
        while self._size(words + call) < tokens - 1:
            words += " too"
        return words + call

    def _size(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)


def script(writer: Writer) -> dict[str, Any]:
    """For the scripted model: every reply is the same call, at once."""
    return {"default": {"text": writer.reply(), "end": True}}


def tools() -> list[dict[str, Any]]:
    properties = {
        name: {"type": "string", "description": f"The {name} to use, as the tool's manual explains it."}
        for name in ("path", "pattern", "text")
    }
    schema = {"type": "object", "properties": properties, "required": ["path"]}
    return [
        {"name": f"tool_{number}", "description": f"Tool number {number} of the agent.", "input_schema": schema}
        for number in range(TOOLS)
    ]


@dataclass(slots=True)
class Agent:
    """One agent in a session of its own, at the server that ``http`` has as its base."""

    http: aiohttp.ClientSession
    sid: str
    writer: Writer
    system_tokens: int = SYSTEM_TOKENS
    messages: list[dict[str, Any]] = field(default_factory=list)
    body: dict[str, Any] = field(default_factory=dict)
    first_at: float = 0.0
    """When the first output of the last reply was there, by ``time.perf_counter``; 0 if none was."""
    ended_at: float = 0.0
    """When its last byte was."""

    def __post_init__(self) -> None:
        system = self.writer.text(self.system_tokens)
        self.body = {"model": "rollserve", "max_tokens": 4096, "stream": True, "system": system, "tools": tools()}
        self.messages = [{"role": "user", "content": "Fix the bug."}]

    def request(self) -> bytes:
        """The body of the next turn, made beforehand so that its making is not measured."""
        return orjson.dumps({**self.body, "messages": self.messages})

    async def turn(self, request: bytes) -> int:
        """Send it and take the reply and its tool's result into the history; gives the prompt's tokens. Raises: BadReply."""
        headers = {"session-id": self.sid, "Content-Type": "application/json"}
        async with self.http.post("/v1/messages", data=request, headers=headers) as response:
            stream = await self._read(response)
        events = [orjson.loads(line[6:]) for line in stream.split(b"\n") if line.startswith(b"data: ")]
        if not events or events[-1]["type"] != "message_stop":
            raise BadReply(f"{response.status} {stream[-500:]!r}")
        content = _content(events)
        if [block["type"] for block in content] != ["text", "tool_use"]:
            raise BadReply(f"not a text and a call: {content}")
        result = {
            "type": "tool_result",
            "tool_use_id": content[1]["id"],
            "content": self.writer.text(RESULT_TOKENS),
        }
        self.messages += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
        return int(events[0]["message"]["usage"]["input_tokens"])

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        stream, self.first_at = b"", 0.0
        async for chunk in response.content.iter_any():
            stream += chunk
            if not self.first_at and FIRST in stream:
                self.first_at = time.perf_counter()
        self.ended_at = time.perf_counter()
        return stream


def _content(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The content blocks of a streamed message."""
    blocks: list[dict[str, Any]] = []
    arguments = ""
    for event in events:
        match event:
            case {"type": "content_block_start", "content_block": block}:
                blocks.append(block)
                arguments = ""
            case {"type": "content_block_delta", "delta": {"text": text}}:
                blocks[-1]["text"] += text
            case {"type": "content_block_delta", "delta": {"partial_json": part}}:
                arguments += part
            case {"type": "content_block_stop"} if blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = orjson.loads(arguments)
    return blocks
