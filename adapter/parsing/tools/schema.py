"""JSON values from the plain text of the XML formats, typed by the tool's JSON schema.

Such a format writes every value without quotes, so only the schema tells the string ``42`` from the number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adapter.parsing.json_scanner import parse_json
from adapter.types import Tool

MAX_INDIRECTION = 8
"""References and alternatives followed one inside the other. A schema that needs more does not say the type."""

_LITERALS = {"true": True, "false": False, "null": None, "none": None}
"""In lower case. Chat templates write Python's names where they do not write JSON."""


@dataclass(frozen=True, slots=True)
class ToolTypes:
    """For each parameter of each tool that its schema describes: the JSON types that it may have, read when asked for."""

    tools: Mapping[str, Any]
    """Schemas by name."""

    @classmethod
    def of(cls, tools: Sequence[Tool]) -> ToolTypes:
        return cls({tool["function"]["name"]: tool["function"].get("parameters") for tool in tools})

    def knows(self, tool: str) -> bool:
        return tool in self.tools

    def is_text(self, tool: str, parameter: str) -> bool:
        """Whether the schema allows a string, or doesn't say."""
        types = self._types(tool, parameter)
        return not types or "string" in types

    def value(self, tool: str, parameter: str, text: str) -> Any:
        """``text`` as JSON where the schema allows that type, and does not allow a string; else ``text``."""
        if self.is_text(tool, parameter):
            return text
        types = self._types(tool, parameter)
        word = text.strip()
        try:
            value = _LITERALS[word.lower()] if word.lower() in _LITERALS else parse_json(word)
        except ValueError:
            return text
        return value if _types_of(value) & types else text

    def _types(self, tool: str, parameter: str) -> frozenset[str]:
        schema = self.tools.get(tool)
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        if schema is None or not isinstance(properties, Mapping) or parameter not in properties:
            return frozenset()
        return frozenset(_types(properties[parameter], schema, MAX_INDIRECTION))


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> set[str]:
    if not isinstance(schema, Mapping) or not depth:
        return set()
    if "type" in schema:
        named = schema["type"]
        return {named} if isinstance(named, str) else {name for name in _items(named) if isinstance(name, str)}
    if isinstance(schema.get("$ref"), str):
        return _types(_referenced(schema["$ref"], root), root, depth - 1)
    for alternatives in ("anyOf", "oneOf", "allOf"):
        if alternatives in schema:
            return set().union(*(_types(option, root, depth - 1) for option in _items(schema[alternatives])))
    values = [schema["const"]] if "const" in schema else _items(schema.get("enum"))
    return set().union(*map(_types_of, values))


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else ()


def _referenced(pointer: str, root: Mapping[str, Any]) -> Any:
    """What ``#/$defs/Name`` stands for (RFC 6901); None if it is not in this schema."""
    target: Any = root
    for part in pointer.removeprefix("#/").split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        target = target.get(key) if isinstance(target, Mapping) else None
    return target


def _types_of(value: Any) -> set[str]:
    """The names that JSON Schema has for the type of ``value``."""
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"integer", "number"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
        case list() | tuple():
            return {"array"}
        case _:
            return {"object"}
