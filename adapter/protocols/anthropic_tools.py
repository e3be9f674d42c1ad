"""Anthropic Messages, the tools of a request: custom tools, some of them deferred.

A tool with ``defer_loading`` is no part of the prompt's head. The model learns of it where a ``tool_reference`` in a tool's result
names it: its definition stands there. So a client that finds tools as it goes, and whose list of tools grows with them, changes
nothing that was rendered before.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from adapter.protocols.common import function_tool
from adapter.protocols.reading import Fields
from adapter.types import Tool


@dataclass(frozen=True, slots=True)
class MessagesTools:
    """``head`` is rendered at the head of the prompt, ``deferred`` where it is referred to. Both can be called."""

    head: tuple[Tool, ...] = ()
    deferred: tuple[Tool, ...] = ()

    def referred(self, name: str) -> str:
        """What the model reads at a reference: the definition of a deferred tool, as templates write one; any other's name."""
        for tool in self.deferred:
            if tool["function"]["name"] == name:
                return json.dumps(tool, ensure_ascii=False)
        return name


def read_tools(fields: Fields) -> MessagesTools:
    """None of them where ``tool_choice`` is none. Raises: BadRequest."""
    wire = fields.objects("tools")
    tools = [(_read_tool(tool), tool.flag("defer_loading")) for tool in wire]
    if not _may_call_tools(fields, bool(tools)):
        return MessagesTools()
    return MessagesTools(
        head=tuple(tool for tool, is_deferred in tools if not is_deferred),
        deferred=tuple(tool for tool, is_deferred in tools if is_deferred),
    )


def _read_tool(tool: Fields) -> Tool:
    kind = tool.text_or_none("type")
    if kind not in (None, "custom"):
        raise tool.wrong("type", f"{kind[:64]!r} is a server tool; only custom tools are supported")
    if tool.flag("strict"):
        raise tool.wrong("strict", "strict schemas are not supported by this server; leave it out")
    if tool.objects("input_examples"):
        raise tool.wrong("input_examples", "not supported by this server; put examples into the description")
    if any(caller != "direct" for caller in tool.texts("allowed_callers")):
        raise tool.wrong("allowed_callers", "only direct is supported")
    schema = tool.json_object_or_none("input_schema")
    if schema is None:
        raise tool.wrong("input_schema", "is required: an object")
    return function_tool(tool.name_text("name"), tool.text_or_none("description") or "", schema)


def _may_call_tools(fields: Fields, any_tools: bool) -> bool:
    choice = fields.object_or_none("tool_choice")
    if choice is None:
        return True
    kind = choice.text("type")
    if kind not in ("auto", "none"):
        raise choice.wrong("type", "must be auto or none: this server cannot force a tool call")
    if choice.flag("disable_parallel_tool_use") and any_tools and kind == "auto":
        raise choice.wrong("disable_parallel_tool_use", "this server cannot limit a reply to one tool call")
    return kind == "auto"
