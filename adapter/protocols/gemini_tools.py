"""Gemini, the tools of a request: function declarations, and which of them may or must be called.

Google's own tools (``googleSearch``, ``codeExecution``, ``urlContext``, ...) are refused by name. gemini-cli sends them in side
calls alone, and tells its model that the tool failed.
"""

from __future__ import annotations

from typing import Any

from adapter.protocols.common import function_tool
from adapter.protocols.gemini_fields import ProtoFields
from adapter.protocols.gemini_schema import read_schema
from adapter.protocols.reading import claim_name
from adapter.types import Tool, ToolChoice, ToolChoiceMode

_VALIDATED = "VALIDATED"
"""The model decides, but a call follows its schema."""

_MODES = {
    "AUTO": ToolChoiceMode.AUTO,
    _VALIDATED: ToolChoiceMode.AUTO,
    "ANY": ToolChoiceMode.REQUIRED,
    "NONE": ToolChoiceMode.NONE,
}

_DESCRIBED = ("response", "response_json_schema")
"""What a function returns: for people and for servers that call it."""


def read_tools(fields: ProtoFields, unused: list[str]) -> tuple[Tool, ...]:
    """Raises: BadRequest."""
    tools: list[Tool] = []
    taken: set[str] = set()
    for tool in fields.messages("tools"):
        for name in tool.values:
            if name != "function_declarations" and tool.has(name):
                raise tool.wrong(name, "tools of the server are not supported; only function declarations are")
        for declaration in tool.messages("function_declarations"):
            claim_name(declaration, declaration.name_text("name"), taken)
            tools.append(_read_declaration(declaration, unused))
    return tuple(tools)


def _read_declaration(declaration: ProtoFields, unused: list[str]) -> Tool:
    if declaration.word("behavior", ("BLOCKING", "NON_BLOCKING")) == "NON_BLOCKING":
        raise declaration.wrong("behavior", "calls that do not wait for their result are not supported")
    for name in _DESCRIBED:
        listed = f"tools.functionDeclarations.{declaration.written(name)}"
        if declaration.has(name) and listed not in unused:
            unused.append(listed)
    return function_tool(
        declaration.name_text("name"), declaration.text_or_none("description") or "", _read_parameters(declaration)
    )


def _read_parameters(declaration: ProtoFields) -> dict[str, Any]:
    as_json = declaration.json_object_or_none("parameters_json_schema")
    schema = declaration.object_or_none("parameters")
    if as_json is not None and schema is not None:
        raise declaration.wrong("parameters", "cannot stand beside parametersJsonSchema")
    if as_json is not None:
        return as_json
    return {"type": "object", "properties": {}} if schema is None else read_schema(schema)


def read_calling(fields: ProtoFields, tools: tuple[Tool, ...]) -> tuple[ToolChoice, dict[str, str]]:
    """``toolConfig.functionCallingConfig``, also as ``ChatRequest.strict_tools``. Raises: BadRequest."""
    config = fields.object_or_none("tool_config")
    if config is None:
        return ToolChoice(), {}
    for name in config.values:
        if name != "function_calling_config" and config.get(name) not in (None, False, {}):
            raise config.wrong(name, "is not supported by this server; leave it out")
    calling = config.object_or_none("function_calling_config")
    return (ToolChoice(), {}) if calling is None else _read_mode(calling, tools)


def _read_mode(calling: ProtoFields, tools: tuple[Tool, ...]) -> tuple[ToolChoice, dict[str, str]]:
    if calling.flag("stream_function_call_arguments"):
        raise calling.wrong("stream_function_call_arguments", "is not supported by this server; leave it out")
    word = calling.word("mode", _MODES) or "AUTO"
    mode = _MODES[word]
    names = tuple(calling.texts("allowed_function_names"))
    known = [tool["function"]["name"] for tool in tools]
    if names and word not in ("ANY", _VALIDATED):
        raise calling.wrong("allowed_function_names", f"can be set only where mode is ANY or {_VALIDATED}")
    if not set(known).issuperset(names):
        raise calling.wrong("allowed_function_names", "each must be the name of a declared function")
    if mode is ToolChoiceMode.REQUIRED and not tools:
        raise calling.wrong("mode", "there are no functions to call")
    strict = dict.fromkeys(names or known, calling.at("mode")) if word == _VALIDATED else {}
    return ToolChoice(mode, names, calling.path), strict
