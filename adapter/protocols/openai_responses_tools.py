"""OpenAI Responses, the tools of a request: what the model is shown, and how its calls are written back to the client.

    function                 a function tool under its own name
    namespace                its members as function tools named ``NAMESPACE__NAME``; a call comes back with both members apart
    custom                   a function tool with one string member, ``input``; its grammar is told to the model in the description
    web_search, tool_search  hosted tools that agent programs always list: left out, and listed as without effect

Other hosted tools are refused: this server runs no tools. With no ``tool_search``, tools that wait to be found by it
(``defer_loading``) are shown at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adapter.protocols.common import function_tool
from adapter.protocols.reading import Fields
from adapter.types import Tool, ToolChoice, ToolChoiceMode

CUSTOM_MEMBER = "input"
"""The one argument of a custom tool as the model is shown it."""

_LEFT_OUT = ("web_search", "web_search_preview", "tool_search", "image_generation")
"""Types, or their beginnings (``web_search_2025_08_26``): Codex lists these whatever the server can do."""

_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class WireTool:
    """A tool as the client knows it."""

    name: str
    namespace: str | None = None
    custom: bool = False


def shown_name(name: str, namespace: str | None) -> str:
    """The name that the model sees and writes."""
    return name if namespace is None else f"{namespace}__{name}"


@dataclass(slots=True)
class ResponsesTools:
    """``shown`` is rendered; ``wire`` gives the client's own terms for each shown name, ``strict`` is by shown name too."""

    shown: list[Tool] = field(default_factory=list)
    wire: dict[str, WireTool] = field(default_factory=dict)
    strict: dict[str, str] = field(default_factory=dict)
    """``ChatRequest.strict_tools``."""
    unused: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, fields: Fields) -> ResponsesTools:
        """Raises: BadRequest."""
        tools = cls()
        for tool in fields.objects("tools"):
            tools._read(tool)
        return tools

    def _read(self, tool: Fields) -> None:
        match tool.text("type"):
            case "function" | "custom":
                self._add(tool, None)
            case "namespace":
                namespace = tool.name_text("name")
                for member in tool.objects("tools"):
                    self._add(member, namespace)
            case kind if kind.startswith(_LEFT_OUT):
                self._note(f"tools.{kind}")
            case kind:
                raise tool.wrong("type", f"{kind[:64]!r} tools are not supported: this server runs no tools itself")

    def _add(self, tool: Fields, namespace: str | None) -> None:
        kind = tool.text("type")
        if kind not in ("function", "custom"):
            raise tool.wrong("type", "must be function or custom")
        if any(caller != "direct" for caller in tool.texts("allowed_callers")):
            raise tool.wrong("allowed_callers", "only direct is supported")
        if tool.flag("async"):
            raise tool.wrong("async", "calls that do not wait for their result are not supported")
        if tool.flag("defer_loading"):
            self._note("tools.defer_loading")
        if tool.has("output_schema"):
            self._note("tools.output_schema")
        known = WireTool(tool.name_text("name"), namespace, kind == "custom")
        name = shown_name(known.name, namespace)
        if name in self.wire:
            raise tool.wrong("name", f"the model would see two tools named {name[:64]!r}")
        self.wire[name] = known
        if tool.flag("strict"):
            self.strict[name] = tool.at("strict")
        self.shown.append(self._custom(tool, name) if known.custom else _function(tool, name))

    def _custom(self, tool: Fields, name: str) -> Tool:
        description = tool.text_or_none("description") or ""
        form = tool.object_or_none("format")
        if form is not None and form.text("type") == "grammar":
            self._note("tools.format")
            description += f"\n\nThe input follows this {form.text('syntax')} grammar:\n{form.text('definition')}"
        elif form is not None and form.text("type") != "text":
            raise form.wrong("type", "must be text or grammar")
        member = {"type": "string", "description": "The tool's whole input, as plain text."}
        parameters = {"type": "object", "properties": {CUSTOM_MEMBER: member}, "required": [CUSTOM_MEMBER]}
        return function_tool(name, description, parameters)

    def _note(self, name: str) -> None:
        if name not in self.unused:
            self.unused.append(name)

    def choice(self, fields: Fields) -> ToolChoice:
        """``tool_choice`` in neutral terms. Raises: BadRequest."""
        choice = self._choice(fields)
        if choice.mode is ToolChoiceMode.REQUIRED and not self.shown:
            raise fields.wrong("tool_choice", "there are no tools to call")
        return choice

    def _choice(self, fields: Fields) -> ToolChoice:
        value = fields.get("tool_choice")
        if value is None or isinstance(value, str):
            return ToolChoice(_mode(fields, "tool_choice", value or "auto", ToolChoiceMode))
        choice = fields.object("tool_choice")
        if choice.text("type") != "allowed_tools":
            return ToolChoice(ToolChoiceMode.REQUIRED, (self._chosen(choice),))
        mode = _mode(choice, "mode", choice.text("mode"), (ToolChoiceMode.AUTO, ToolChoiceMode.REQUIRED))
        names = tuple(self._chosen(tool) for tool in choice.objects("tools"))
        if not names:
            raise choice.wrong("tools", "must name at least one tool")
        return ToolChoice(mode, () if self.wire.keys() == set(names) else names)

    def _chosen(self, choice: Fields) -> str:
        """The shown name of the tool that ``choice`` names."""
        kind = choice.text("type")
        if kind not in ("function", "custom"):
            raise choice.wrong("type", f"{kind[:64]!r} cannot be chosen here; only function and custom tools can")
        name = shown_name(choice.name_text("name"), choice.text_or_none("namespace"))
        if name not in self.wire:
            raise choice.wrong("name", "no tool of this request has this name")
        return name


def _mode(holder: Fields, name: str, text: str, modes: Any) -> ToolChoiceMode:
    if text not in list(modes):
        raise holder.wrong(name, f"must be one of {', '.join(modes)}")
    return ToolChoiceMode(text)


def _function(tool: Fields, name: str) -> Tool:
    parameters = tool.json_object_or_none("parameters")
    return function_tool(
        name, tool.text_or_none("description") or "", dict(_NO_PARAMETERS) if parameters is None else parameters
    )
