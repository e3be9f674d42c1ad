"""OpenAI Responses, the input of a request: a string or items become neutral messages.

A run of reasoning, assistant messages and calls is one assistant message: the items of one reply, in the order in which clients
replay them. Item ids, call ids and ``encrypted_content`` are what a reply gave out, and so its handles; a client may drop some of
them. Where they say that two replies stand side by side (a client keeps what was complete of a cut stream and asks again),
each is a message of its own. Items that only a hosted tool makes are refused by their type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from adapter.handles import claimed_turn
from adapter.protocols.arguments import read_arguments
from adapter.protocols.common import assistant_message, join_parts, tool_call
from adapter.protocols.history import History
from adapter.protocols.normalise import Normaliser
from adapter.protocols.openai_responses_tools import CUSTOM_MEMBER, shown_name
from adapter.protocols.reading import Fields

_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


@dataclass(slots=True)
class _AssistantTurn:
    """The items of one reply, as they are read."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    handles: list[str] = field(default_factory=list)
    number: int | None = None
    """Of the reply, as its handles have it."""


class ResponsesHistory(History):
    """Translates instructions and input."""

    def __init__(self, normaliser: Normaliser) -> None:
        super().__init__(normaliser)
        self._turn: _AssistantTurn | None = None

    def read(self, fields: Fields) -> None:
        """Raises: BadRequest."""
        if fields.text_or_none("instructions"):
            self._add_system([(fields.text("instructions"), fields, "instructions")])
        items = fields.text_or_objects("input")
        if not items:
            raise fields.wrong("input", "is required: a string or an array of items")
        if isinstance(items, str):
            self.add({"role": "user", "content": items})
            return
        for item in items:
            self._read_item(item)
        self._end_turn()
        self.end_results()
        if not self.messages:
            raise fields.wrong("input", "must not be empty")

    def _read_item(self, item: Fields) -> None:
        match item.text_or_none("type") or "message":
            case "message":
                self._read_message(item)
            case "reasoning":
                self._read_reasoning(item)
            case "function_call":
                self._read_call(item, read_arguments(item))
            case "custom_tool_call":
                self._read_call(item, {CUSTOM_MEMBER: item.text("input")})
            case "function_call_output" | "custom_tool_call_output":
                self._read_output(item)
            case "item_reference":
                raise item.wrong("id", "no stored reply of this session has an item with this id")
            case kind:
                raise item.wrong("type", f"{kind[:64]!r} items are not supported by this server")

    def _read_message(self, item: Fields) -> None:
        role = item.text("role")
        if not item.has("content"):
            raise item.wrong("content", "is required: a string or an array of parts")
        parts = _text_parts(item, "content")
        texts = [text for text, _, _ in parts]
        if role == "assistant":
            turn = self._open_turn(item, "id")
            turn.texts.extend(texts)
            return
        self._end_turn()
        if role in ("system", "developer"):
            self._add_system(parts)
        elif role == "user":
            self.add({"role": "user", "content": join_parts(texts)})
        else:
            raise item.wrong("role", "must be system, developer, user or assistant")

    def _add_system(self, parts: list[tuple[str, Fields, str]]) -> None:
        kept = [self._normaliser.system_text(text, holder, name) for text, holder, name in parts]
        if any(kept) or not any(text for text, _, _ in parts):
            self.add({"role": "system", "content": join_parts(kept)})

    def _read_reasoning(self, item: Fields) -> None:
        """``content`` is the reasoning itself, ``summary`` what stands for it where there is no content."""
        turn = self._open_turn(item, "id", "encrypted_content")
        parts = _text_parts(item, "content") or _text_parts(item, "summary")
        turn.thoughts.extend(text for text, _, _ in parts)

    def _read_call(self, item: Fields, arguments: dict[str, Any]) -> None:
        turn = self._open_turn(item, "id", "call_id")
        self.add_call(item.name_text("call_id"))
        name = shown_name(item.name_text("name"), item.text_or_none("namespace"))
        turn.calls.append(tool_call(name, arguments))

    def _read_output(self, item: Fields) -> None:
        self._end_turn()
        if not item.has("output"):
            raise item.wrong("output", "is required: a string or an array of parts")
        text = join_parts(part for part, _, _ in _text_parts(item, "output"))
        if not self.add_result(item.text("call_id"), text, item):
            raise item.wrong("call_id", "no tool call before it has this id")

    def _open_turn(self, item: Fields, *issued: str) -> _AssistantTurn:
        """The turn that ``item`` belongs to; the members ``issued`` are its handles."""
        handles = [handle for name in issued if (handle := item.text_or_none(name))]
        number = next((turn for handle in handles if (turn := claimed_turn(handle)) is not None), None)
        if self._turn is not None and None not in (number, self._turn.number) and number != self._turn.number:
            self._end_turn()
        if self._turn is None:
            self._turn = _AssistantTurn()
        self._turn.handles += handles
        self._turn.number = number if self._turn.number is None else self._turn.number
        return self._turn

    def _end_turn(self) -> None:
        if self._turn is None:
            return
        turn, self._turn = self._turn, None
        self.add(assistant_message("".join(turn.texts), "".join(turn.thoughts), turn.calls), turn.handles)


def _text_parts(holder: Fields, name: str) -> list[tuple[str, Fields, str]]:
    """A string or an array of text parts: each text, and the object and member that it stands in."""
    content = holder.text_or_objects(name)
    if content is None or isinstance(content, str):
        return [(content, holder, name)] if content else []
    return [_part(part) for part in content]


def _part(part: Fields) -> tuple[str, Fields, str]:
    kind = part.text("type")
    if kind in _TEXT_PARTS:
        return part.text("text"), part, "text"
    if kind == "refusal":
        return part.text("refusal"), part, "refusal"
    raise part.wrong("type", f"{kind[:64]!r} parts are not supported; only text is")
