"""OpenAI Chat Completions, the streamed reply: neutral events become ``chat.completion.chunk`` frames.

    {"role": "assistant"}, deltas, a chunk with finish_reason, a chunk with usage if asked for, [DONE]

A chunk is one choice with one delta; what its frames have in common is put together once. Several choices are one stream each,
whose frames are mixed. Sampled tokens are reported with the next chunk of their choice. Keepalives are chunks with an empty delta,
since some clients count neither comments nor blank lines as a sign of life.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from adapter.errors import AdapterError
from adapter.ids import IdSource
from adapter.jsontext import dump_json
from adapter.protocols import openai_chat_reply
from adapter.protocols.common import neutral_finish_reason
from adapter.types import (
    ParsedModelOutput,
    ReasoningDelta,
    ReplyEvent,
    TextDelta,
    TokenLogProb,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from engine.types import FinishReason

_DONE = b"data: [DONE]\n\n"


class OpenAIChatStream:
    """One streamed choice (``base.ChoiceStream``), or a reply that is one (``base.ReplyStream``)."""

    def __init__(
        self, *, index: int, reply_id: str, model: str, ids: IdSource, created: int, include_usage: bool
    ) -> None:
        chunk = {"id": reply_id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._head = b"data: " + orjson.dumps(chunk)[:-1]
        self._prefix = self._head + b',"choices":[{"index":%d,"delta":' % index
        # Asked for usage, the official API puts a null one into every chunk but the last.
        self._no_usage = b',"usage":null' if include_usage else b""
        self._tail = b"}]" + self._no_usage + b"}\n\n"
        self._suffix = b',"finish_reason":null' + self._tail
        self._tokens: list[TokenLogProb] = []
        self._include_usage = include_usage
        self._ids = ids
        self._call_index = -1
        self._has_arguments = False

    def start(self, input_tokens: int) -> bytes:
        return self._chunk(b'{"role":"assistant"}')

    def events(self, events: Sequence[ReplyEvent]) -> bytes:
        return b"".join([self._event(event) for event in events])

    def keepalive(self) -> bytes:
        return self._chunk(b"{}")

    def add_tokens(self, tokens: Sequence[TokenLogProb]) -> None:
        self._tokens += tokens

    def finish(self, parsed: ParsedModelOutput, reason: FinishReason, usage: Usage) -> bytes:
        return self.end_choice(parsed, reason) + self.end(usage)

    def end_choice(self, parsed: ParsedModelOutput, reason: FinishReason) -> bytes:
        finish_reason = neutral_finish_reason(parsed, reason).encode()
        return self._prefix + b"{}" + self._log_probs() + b',"finish_reason":"' + finish_reason + b'"' + self._tail

    def end(self, usage: Usage) -> bytes:
        if not self._include_usage:
            return _DONE
        totals = orjson.dumps(openai_chat_reply.usage_body(usage))
        return self._head + b',"choices":[],"usage":' + totals + b"}\n\n" + _DONE

    def error(self, error: AdapterError) -> bytes:
        return b"data: " + orjson.dumps(openai_chat_reply.error_body(error)) + b"\n\n"

    def _event(self, event: ReplyEvent) -> bytes:
        match event:
            case TextDelta(text):
                return self._chunk(b'{"content":' + orjson.dumps(text) + b"}") if text else b""
            case ReasoningDelta(text):
                return self._chunk(b'{"reasoning_content":' + orjson.dumps(text) + b"}") if text else b""
            case ToolCallStart(name):
                self._call_index += 1
                self._has_arguments = False
                call = openai_chat_reply.call_body(openai_chat_reply.new_call_id(self._ids), name, "")
                return self._call_chunk(call)
            case ToolCallDelta(arguments):
                self._has_arguments = self._has_arguments or bool(arguments)
                return self._call_chunk({"function": {"arguments": arguments}}) if arguments else b""
            case ToolCallEnd(use):
                # The client must be able to parse the arguments even if the parser streamed none of them.
                missing = {"function": {"arguments": dump_json(use.input).decode()}}
                return b"" if self._has_arguments else self._call_chunk(missing)

    def _call_chunk(self, members: dict[str, Any]) -> bytes:
        return self._chunk(orjson.dumps({"tool_calls": [{"index": self._call_index, **members}]}))

    def _chunk(self, delta: bytes) -> bytes:
        return self._prefix + delta + self._log_probs() + self._suffix

    def _log_probs(self) -> bytes:
        if not self._tokens:
            return b""
        tokens, self._tokens = self._tokens, []
        return b',"logprobs":' + orjson.dumps(openai_chat_reply.log_probs_body(tokens))
