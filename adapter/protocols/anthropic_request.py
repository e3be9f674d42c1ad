"""Anthropic Messages, the request: a body becomes a neutral ``ChatRequest``.

The reference is the official SDK's ``MessageCreateParams``. One user message of the wire may hold tool results and
text: it becomes its tool messages, in the order of their calls, then one user message with the text. ``role: system`` inside
the list stays where it is.

Refused by name, since nothing here can honour it: images, documents and server tools, forced tool choice, one tool call
at most, structured output, strict tool schemas, continuing a trailing assistant message, server-side edits of the history.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from adapter.errors import BadRequest
from adapter.protocols.anthropic_tools import MessagesTools, read_tools
from adapter.protocols.common import assistant_message, join_parts, tool_call
from adapter.protocols.history import History
from adapter.protocols.knobs import (
    FOREIGN_KNOBS,
    SAMPLING_KNOBS,
    check_token_limits,
    read_sampling,
    read_stop,
    read_template_options,
    refuse_knobs,
    unused_names,
)
from adapter.protocols.normalise import Normaliser
from adapter.protocols.reading import Fields
from adapter.types import ChatRequest

_REFUSED: Mapping[str, Collection[Any]] = {
    **FOREIGN_KNOBS,
    **dict.fromkeys(
        (
            "container", "mcp_servers", "thread", "compaction", "output_format", "stop", "max_completion_tokens",
            "response_format", "function_call", "enable_thinking", "prompt",
        ),
        ([],),
    ),
    "parallel_tool_calls": (True,),
}  # fmt: skip

_HONOURED = SAMPLING_KNOBS | {
    "model", "messages", "system", "max_tokens", "stop_sequences", "stream", "thinking", "output_config", "context_management",
    "tools", "tool_choice", "chat_template_kwargs",
}  # fmt: skip

_THINKING_TYPES = ("enabled", "adaptive", "disabled")


def parse_messages_request(body: Mapping[str, Any], without: Collection[str] = ()) -> ChatRequest:
    """``without``: rules of ``normalise`` to leave out. Raises: BadRequest."""
    fields = Fields.of_body(body)
    refuse_knobs(fields, _REFUSED)
    normaliser = Normaliser(without)
    tools = read_tools(fields)
    history = _MessagesHistory(normaliser, tools)
    history.read(fields)
    sampling = read_sampling(fields)
    max_tokens = fields.integer_or_none("max_tokens", 1)
    check_token_limits(fields, sampling, max_tokens)
    unused = [*unused_names(fields, _HONOURED | _REFUSED.keys()), *history.unused]
    return ChatRequest(
        messages=tuple(history.messages),
        tools=tools.head,
        deferred_tools=tools.deferred,
        model=fields.text_or_none("model"),
        max_tokens=max_tokens,
        sampling=sampling,
        stop=read_stop(fields, "stop_sequences"),
        stream=fields.flag("stream"),
        template_options=_read_template_options(fields, unused),
        handles=history.handles,
        normalised=tuple(normaliser.taken),
        unused_fields=tuple(unused),
    )


class _MessagesHistory(History):
    """Translates the wire's system prompt and messages."""

    def __init__(self, normaliser: Normaliser, tools: MessagesTools) -> None:
        super().__init__(normaliser)
        self._tools = tools

    def read(self, fields: Fields) -> None:
        self._add_system(fields, "system")
        wire = fields.objects("messages")
        if not wire:
            raise fields.wrong("messages", "at least one message is required")
        for message in wire:
            self._read_message(message)
        self.end_results()
        if not self.messages:
            raise fields.wrong("messages", "must not be empty")
        if self.messages[-1]["role"] == "assistant":
            last = max(index for index, message in enumerate(wire) if message.get("role") == "assistant")
            raise fields.wrong(
                f"messages.{last}",
                "a trailing assistant message cannot be continued by this server; end with a user message",
            )

    def _read_message(self, message: Fields) -> None:
        match message.text("role"):
            case "user":
                self._read_user(message)
            case "assistant":
                self._read_assistant(message)
            case "system":
                _require_content(message)
                self._add_system(message, "content")
            case _:
                raise message.wrong("role", "must be user, assistant or system")

    def _add_system(self, holder: Fields, name: str) -> None:
        text = join_parts(self._normaliser.system_text(*part) for part in _text_parts(holder, name))
        if text:
            self.add({"role": "system", "content": text})

    def _read_user(self, message: Fields) -> None:
        texts: list[str] = []
        results = 0
        for block in _blocks(message):
            match block.text("type"):
                case "text":
                    texts.append(block.text("text"))
                case "tool_result":
                    self._read_tool_result(block)
                    results += 1
                case other:
                    raise _unsupported(block, other, "user messages")
        if texts:
            self.add({"role": "user", "content": join_parts(texts)})
        elif not results:
            raise message.wrong("content", "must not be empty")

    def _read_tool_result(self, block: Fields) -> None:
        if block.flag("is_error"):
            self.note("messages.content.is_error")
        if not self.add_result(block.text("tool_use_id"), self._result_text(block), block):
            raise block.wrong("tool_use_id", "no tool_use block before it has this id")

    def _result_text(self, block: Fields) -> str:
        parts: list[str] = []
        for part in _content(block):
            match part.text("type"):
                case "text":
                    parts.append(part.text("text"))
                case "tool_reference":
                    parts.append(self._tools.referred(part.text("tool_name")))
                case other:
                    raise _unsupported(part, other, "tool results")
        return join_parts(parts)

    def _read_assistant(self, message: Fields) -> None:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[dict[str, Any]] = []
        handles: list[str] = []
        for block in _blocks(message):
            match block.text("type"):
                case "text":
                    texts.append(block.text("text"))
                case "thinking":
                    thoughts.append(block.text("thinking"))
                    handles.append(block.text_or_none("signature") or "")
                case "redacted_thinking":
                    self.note("messages.content.redacted_thinking")
                case "tool_use":
                    handles.append(block.name_text("id"))
                    self.add_call(handles[-1])
                    calls.append(tool_call(block.name_text("name"), block.json_object_or_none("input") or {}))
                case other:
                    raise _unsupported(block, other, "assistant messages")
        issued = [handle for handle in handles if handle]
        self.add(assistant_message("".join(texts), "".join(thoughts), calls), issued)


def _require_content(message: Fields) -> None:
    if not message.has("content"):
        raise message.wrong("content", "is required: a string or an array of blocks")


def _blocks(message: Fields) -> list[Fields]:
    _require_content(message)
    return _content(message)


def _content(holder: Fields) -> list[Fields]:
    """``content`` as blocks: a string is one text block."""
    content = holder.text_or_objects("content")
    if isinstance(content, str):
        return [Fields({"type": "text", "text": content}, holder, "content")]
    return content or []


def _text_parts(holder: Fields, name: str) -> list[tuple[str, Fields, str]]:
    """A string or an array of text blocks: each text, and the object and member that it stands in."""
    content = holder.text_or_objects(name)
    if content is None or isinstance(content, str):
        return [(content, holder, name)] if content else []
    for block in content:
        if block.text("type") != "text":
            raise block.wrong("type", "must be text")
    return [(block.text("text"), block, "text") for block in content]


def _unsupported(block: Fields, kind: str, where: str) -> BadRequest:
    return block.wrong("type", f"{kind[:64]!r} blocks are not supported in {where}")


def _read_template_options(fields: Fields, unused: list[str]) -> dict[str, Any]:
    """``thinking`` as the template variable ``enable_thinking``; explicit ``chat_template_kwargs`` go first."""
    options: dict[str, Any] = {}
    thinking = fields.object_or_none("thinking")
    if thinking is not None:
        kind = thinking.text("type")
        if kind not in _THINKING_TYPES:
            raise thinking.wrong("type", f"must be one of {', '.join(_THINKING_TYPES)}")
        options["enable_thinking"] = kind != "disabled"
        unused.extend(f"thinking.{name}" for name in unused_names(thinking, ("type",)))
    output = fields.object_or_none("output_config")
    if output is not None:
        if output.has("format"):
            raise output.wrong("format", "structured output is not supported by this server; leave it out")
        unused.extend(f"output_config.{name}" for name in unused_names(output, ("format",)))
    _check_context_management(fields, unused)
    return options | read_template_options(fields)


def _check_context_management(fields: Fields, unused: list[str]) -> None:
    """Edits of the history by the server are refused, except the one that keeps everything, which Claude Code sends."""
    management = fields.object_or_none("context_management")
    if management is None:
        return
    for edit in management.objects("edits"):
        keep = edit.get("keep")
        keeps_all = keep == "all" or (isinstance(keep, dict) and keep.get("type") == "all")
        if not (edit.text("type").startswith("clear_thinking") and keeps_all):
            raise edit.wrong(
                "type", "this server does not edit the history; only clear_thinking with keep: all is accepted"
            )
    unused.append("context_management")
