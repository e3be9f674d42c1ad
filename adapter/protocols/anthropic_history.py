"""Anthropic Messages, the history of a request: system prompt and messages become neutral messages.

One user message of the wire may hold tool results and text: it becomes its tool messages, in the order of their calls, then one
user message with the text. ``role: system`` inside the list stays where it is; what it says of tools is text there. A trailing
assistant message is the beginning of the reply (prefill). A result with ``is_error`` says so in its text, since chat templates
have no other place for it.
"""

from __future__ import annotations

from typing import Any

from adapter.errors import BadRequest
from adapter.protocols.anthropic_tools import MessagesTools
from adapter.protocols.common import assistant_message, join_parts, tool_call
from adapter.protocols.history import CannotGoOn, Checkpoint, History, last_index
from adapter.protocols.knobs import unused_names
from adapter.protocols.normalise import Normaliser
from adapter.protocols.reading import Fields

_ERROR_WORD_WITHIN = 64
"""Characters at the start of a failed result in which the word "error" tells the model enough."""

_CLEAR_AT = ("next_user_message", "never")


class MessagesHistory(History):
    """Translates the wire's system prompt and messages."""

    def __init__(self, normaliser: Normaliser, tools: MessagesTools) -> None:
        super().__init__(normaliser)
        self._tools = tools
        self._last_user = -1
        """Index of the last user message of the wire."""

    def read(self, fields: Fields, known: Checkpoint | None = None) -> Checkpoint | None:
        """Gives where a request that begins like this one can go on, if it can; ``messages`` are what follows ``known``.

        Raises: BadRequest; CannotGoOn.
        """
        if known is not None and self._tools.deferred:
            raise CannotGoOn
        self._add_system(fields, "system")
        self.begin_messages(known)
        before = 0 if known is None else known.count
        wire = fields.objects("messages", before)
        if not wire:
            raise fields.wrong("messages", "at least one message is required")
        roles = [message.get("role") for message in wire]
        self._last_user = last_index(roles, "user")
        # The last message of all may be the beginning of the reply, which is another thing once more follows it.
        last_reply = last_index(roles[:-1], "assistant")
        found = None
        for at, message in enumerate(wire):
            self._read_message(at, message)
            if at == last_reply and "system" not in roles[:at] and not self._tools.deferred:
                found = self.checkpoint(before + at + 1)
        self.end_results()
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.continue_last(fields, f"messages.{before + last_index(roles, 'assistant')}")
        if not self.messages:
            raise fields.wrong("messages", "must not be empty")
        return found

    def _read_message(self, at: int, message: Fields) -> None:
        match message.text("role"):
            case "user":
                self._read_user(message)
            case "assistant":
                self._read_assistant(message)
            case "system":
                self._read_system(message, is_past=at < self._last_user)
            case _:
                raise message.wrong("role", "must be user, assistant or system")

    def _add_system(self, holder: Fields, name: str) -> None:
        text = join_parts(self._normaliser.system_text(*part) for part in _text_parts(holder, name))
        if text:
            self.add({"role": "system", "content": text})

    def _read_system(self, message: Fields, is_past: bool) -> None:
        """A system message inside the list. ``is_past``: a user message follows it."""
        clear_at = message.text_or_none("clear_at")
        if clear_at not in (None, *_CLEAR_AT):
            raise message.wrong("clear_at", f"must be one of {', '.join(_CLEAR_AT)}")
        config = message.object_or_none("output_config")
        if config is None:
            _require_content(message)
        else:
            for name in unused_names(config, ()):
                self.note(f"messages.output_config.{name}")
        content = message.get("content")
        if isinstance(content, str):
            text = self._normaliser.system_text(content, message, "content")
        else:
            text = join_parts(self._system_part(block) for block in _content(message))
        if text and not (is_past and clear_at == "next_user_message"):
            self.add({"role": "system", "content": text})

    def _system_part(self, block: Fields) -> str:
        match block.text("type"):
            case "text":
                return self._normaliser.system_text(block.text("text"), block, "text")
            case "tool_addition" | "tool_removal":
                return self._tools.change(block)
            case other:
                raise _unsupported(block, other, "system messages")

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
        text = self._result_text(block)
        if block.flag("is_error") and "error" not in text[:_ERROR_WORD_WITHIN].lower():
            text = f"Error: {text}" if text else "Error"
        if not self.add_result(block.text("tool_use_id"), text, block):
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
