"""Grammars of a call's arguments: one JSON object, or parameters one by one without quotes. Pure.

Of a parameter that may be a string the text is the value, as ``adapter.parsing.tools.schema`` reads it; of any other it is JSON.
What a schema asks of a string besides an enumeration (``pattern``, ``maxLength``, ...) cannot be ensured in such a format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapter.guides.formats import ParameterFormat
from adapter.guides.lark import Lark
from adapter.parsing.tools.schema import ToolTypes
from adapter.types import Tool

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}

_TEXT_RULES = frozenset({"pattern", "format", "minLength", "maxLength", "allOf", "oneOf", "not", "$ref", "if"})
_OBJECT_RULES = frozenset(
    {"minProperties", "maxProperties", "patternProperties", "propertyNames", "dependentRequired", "dependentSchemas"}
) | frozenset({"anyOf", "oneOf", "allOf", "not", "if", "$ref", "enum", "const"})


class NotWritable(ValueError):
    """This schema cannot be ensured in a format of parameters; the message says what of it."""


class Parameters:
    """Writes the arguments of one tool in a format of parameters."""

    def __init__(self, lark: Lark, written: ParameterFormat, tool: Tool) -> None:
        self._lark = lark
        self._format = written
        self._name: str = tool["function"]["name"]
        self._types = ToolTypes.of([tool])

    def following(self, schema: Mapping[str, Any], *, lenient: bool) -> str:
        """Arguments that follow ``schema``, in the order of its properties; ``lenient`` passes over what cannot be ensured.

        Raises: NotWritable.
        """
        if not lenient:
            _refuse(schema, _OBJECT_RULES)
        required = schema.get("required", ())
        members = []
        for name, of in schema.get("properties", {}).items():
            member = self._member(name, of if isinstance(of, Mapping) else {}, schema, lenient)
            members.append(member if name in required else f"({member})?")
        if not lenient and not set(required) <= set(schema.get("properties", {})):
            raise NotWritable("required names that are no properties")
        return " ".join(members)

    def any(self) -> str:
        """Any arguments."""
        key = self._lark.pattern(r'[^<>"\s]{1,64}')
        value = self._text() if self._format.before_text == self._format.before_json else self._typed_value()
        return f"({self._literal(self._format.before_key)} {key} {value})*"

    def _member(self, name: str, schema: Mapping[str, Any], root: Mapping[str, Any], lenient: bool) -> str:
        return f"{self._literal(self._format.before_key + name)} {self._value(name, schema, root, lenient)}"

    def _value(self, name: str, schema: Mapping[str, Any], root: Mapping[str, Any], lenient: bool) -> str:
        if not self._types.is_text(self._name, name):
            definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
            return self._json({**schema, **definitions}, lenient)
        if (words := _enumerated(schema)) is not None:
            after = self._format.after_value
            return f"({' | '.join(self._literal(self._format.before_text + word + after) for word in words)})"
        if not lenient:
            _refuse(schema, _TEXT_RULES)
        return self._text()

    def _text(self) -> str:
        ends = self._format.text_ends
        return f"{self._literal(self._format.before_text)} {self._lark.up_to(self._format.after_value, without=ends)}"

    def _json(self, schema: Mapping[str, Any], lenient: bool) -> str:
        value = self._lark.json(schema, lenient=lenient)
        return f"{self._literal(self._format.before_json)} {value} {self._literal(self._format.after_value)}"

    def _typed_value(self) -> str:
        return f"({self._text()} | {self._json({}, lenient=False)})"

    def _literal(self, text: str) -> str:
        return self._lark.literal(text)


def _enumerated(schema: Mapping[str, Any]) -> list[str] | None:
    """The strings that a schema lists, if it lists its values."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return None
    return [value for value in values if isinstance(value, str)] or None


def _refuse(schema: Mapping[str, Any], keywords: frozenset[str]) -> None:
    if found := sorted(keywords & schema.keys()):
        raise NotWritable(f"the keyword {found[0]!r} cannot be ensured where values have no quotes")
