"""OpenAI Chat Completions, ``tool_choice``: which tools a reply may call, or has to.

"none" | "auto" | "required"
{"type": "function", "function": {"name": NAME}}
{"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required", "tools": [{"type": "function", "function": {...}}]}}
"""

from __future__ import annotations

from collections.abc import Sequence

from adapter.protocols.reading import Fields
from adapter.types import Tool, ToolChoice, ToolChoiceMode

_MODES = {"auto": ToolChoiceMode.AUTO, "none": ToolChoiceMode.NONE, "required": ToolChoiceMode.REQUIRED}


def read_tool_choice(fields: Fields, tools: Sequence[Tool]) -> ToolChoice:
    """Raises: BadRequest."""
    known = {tool["function"]["name"] for tool in tools}
    choice = _read_choice(fields, known)
    if choice.mode is ToolChoiceMode.REQUIRED and not known:
        raise fields.wrong("tool_choice", "there are no tools to call")
    return choice


def _read_choice(fields: Fields, known: set[str]) -> ToolChoice:
    wire = fields.get("tool_choice")
    if wire is None:
        return ToolChoice()
    if isinstance(wire, str):
        if wire not in _MODES:
            raise fields.wrong("tool_choice", f"must be one of {', '.join(_MODES)}, or an object")
        return ToolChoice(_MODES[wire])
    choice = fields.object("tool_choice")
    match choice.text("type"):
        case "function":
            return ToolChoice(ToolChoiceMode.REQUIRED, (_tool_name(choice, known),))
        case "allowed_tools":
            return _allowed(choice.object("allowed_tools"), known)
        case _:
            raise choice.wrong("type", "must be function or allowed_tools")


def _allowed(allowed: Fields, known: set[str]) -> ToolChoice:
    mode = allowed.text("mode")
    if mode not in ("auto", "required"):
        raise allowed.wrong("mode", "must be auto or required")
    names = tuple(_tool_name(tool, known) for tool in allowed.objects("tools"))
    if not names:
        raise allowed.wrong("tools", "at least one tool is required")
    return ToolChoice(_MODES[mode], names)


def _tool_name(tool: Fields, known: set[str]) -> str:
    if tool.text("type") != "function":
        raise tool.wrong("type", "must be function")
    function = tool.object("function")
    name = function.name_text("name")
    if name not in known:
        raise function.wrong("name", "no tool of this request has this name")
    return name
