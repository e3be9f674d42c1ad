"""Anthropic Messages, the tools of a request: custom tools, some of them deferred, and which of them may be called.

A tool with ``defer_loading`` is no part of the prompt's head. The model learns of it where a ``tool_reference`` in a tool's result
or a ``tool_addition`` in a system message names it: its definition stands there. So a client that finds tools as it goes, and whose
list of tools grows with them, changes nothing that was rendered before. The same holds for a tool that a ``tool_addition`` defines
by itself. A ``tool_removal`` tells the model that the tool is gone; what was rendered stays.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from adapter.protocols.common import function_tool
from adapter.protocols.reading import Fields, claim_name
from adapter.types import Tool, ToolChoice, ToolChoiceMode

_MODES = {
    "auto": ToolChoiceMode.AUTO,
    "any": ToolChoiceMode.REQUIRED,
    "tool": ToolChoiceMode.REQUIRED,
    "none": ToolChoiceMode.NONE,
}


@dataclass(slots=True)
class MessagesTools:
    """``head`` is rendered at the head of the prompt, ``deferred`` where it is referred to. Both can be called."""

    head: list[Tool] = field(default_factory=list)
    deferred: list[Tool] = field(default_factory=list)
    strict: dict[str, str] = field(default_factory=dict)
    """``ChatRequest.strict_tools``."""

    def names(self) -> set[str]:
        return {tool["function"]["name"] for tool in (*self.head, *self.deferred)}

    def referred(self, name: str) -> str:
        """What the model reads at a reference: the definition of a deferred tool, as templates write one; any other's name."""
        for tool in self.deferred:
            if tool["function"]["name"] == name:
                return _definition(tool)
        return name

    def read(self, tool: Fields) -> Tool:
        """One definition. Raises: BadRequest."""
        kind = tool.text_or_none("type")
        if kind not in (None, "custom"):
            raise tool.wrong("type", f"{kind[:64]!r} is a server tool; only custom tools are supported")
        if tool.flag("strict"):
            self.strict[tool.name_text("name")] = tool.at("strict")
        if tool.objects("input_examples"):
            raise tool.wrong("input_examples", "not supported by this server; put examples into the description")
        if any(caller != "direct" for caller in tool.texts("allowed_callers")):
            raise tool.wrong("allowed_callers", "only direct is supported")
        schema = tool.json_object_or_none("input_schema")
        if schema is None:
            raise tool.wrong("input_schema", "is required: an object")
        return function_tool(tool.name_text("name"), tool.text_or_none("description") or "", schema)

    def change(self, block: Fields) -> str:
        """What the model reads of a ``tool_addition`` or ``tool_removal``. Raises: BadRequest."""
        added = block.text("type") == "tool_addition"
        tool = block.object("tool")
        kind = tool.text("type")
        if kind == "tool_definition" and added:
            definition = self.read(tool.object("definition"))
            self.deferred.append(definition)
            return f"This tool is available from now on:\n{_definition(definition)}"
        if kind != "tool_reference":
            raise tool.wrong("type", f"{kind[:64]!r} is not supported by this server")
        name = tool.name_text("name")
        if name not in self.names():
            raise tool.wrong("name", "no tool of this request has this name")
        if added:
            return f"This tool is available from now on:\n{self.referred(name)}"
        return f"This tool is no longer available: {name}"


def read_tools(fields: Fields) -> MessagesTools:
    """Raises: BadRequest."""
    tools, taken = MessagesTools(), set[str]()
    for tool in fields.objects("tools"):
        claim_name(tool, tool.name_text("name"), taken)
        (tools.deferred if tool.flag("defer_loading") else tools.head).append(tools.read(tool))
    return tools


def read_tool_choice(fields: Fields, tools: MessagesTools) -> tuple[ToolChoice, bool]:
    """``tool_choice``, and whether a reply may hold several calls. Raises: BadRequest."""
    choice = fields.object_or_none("tool_choice")
    if choice is None:
        return ToolChoice(), True
    kind = choice.text("type")
    if kind not in _MODES:
        raise choice.wrong("type", f"must be one of {', '.join(_MODES)}")
    mode = _MODES[kind]
    if mode is ToolChoiceMode.REQUIRED and not tools.names():
        raise choice.wrong("type", "there are no tools to call")
    names = (choice.name_text("name"),) if kind == "tool" else ()
    if not tools.names().issuperset(names):
        raise choice.wrong("name", "no tool of this request has this name")
    return ToolChoice(mode, names), not choice.flag("disable_parallel_tool_use")


def _definition(tool: Tool) -> str:
    return json.dumps(tool, ensure_ascii=False)
