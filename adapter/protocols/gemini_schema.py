"""Gemini's ``Schema`` (a subset of OpenAPI 3.0) as a JSON schema, which is what chat templates show and grammars are made from.

    {"type": "OBJECT", "properties": {"n": {"type": "INTEGER", "nullable": true, "minimum": 1}}, "required": ["n"]}
    {"type": "object", "properties": {"n": {"type": ["integer", "null"], "minimum": 1}}, "required": ["n"]}

Types lose their capitals, ``nullable`` becomes the type ``null``, 64-bit bounds, which ProtoJSON writes as strings, become numbers,
``propertyOrdering`` becomes the order of the properties, ``example`` becomes ``examples``.

Source: ai.google.dev, "Caching" API reference, ``Schema``; google-genai's ``types.Schema``.
"""

from __future__ import annotations

from typing import Any

from adapter.protocols.gemini_fields import ProtoFields, camel_case
from adapter.protocols.reading import MAX_DEPTH, Fields, deeper_than

_TYPES = ("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL")
_COUNTS = ("min_items", "max_items", "min_properties", "max_properties", "min_length", "max_length")
_TEXTS = ("title", "description", "format", "pattern", "ref")
_KNOWN = frozenset(
    (
        "type", "nullable", "enum", "items", "prefix_items", "properties", "property_ordering", "required", "any_of", "minimum",
        "maximum", "default", "example", "defs", "additional_properties", *_COUNTS, *_TEXTS,
    )
)  # fmt: skip
_WHOLE = 2**53
_MAX_LEVELS = MAX_DEPTH // 2
"""A schema inside a schema is two levels of JSON."""


def read_schema(schema: ProtoFields, depth: int = 0) -> dict[str, Any]:
    """Raises: BadRequest, also for a member that a ``Schema`` does not have: it could be a demand."""
    if depth > _MAX_LEVELS:
        raise schema.wrong("type", f"schemas must not nest deeper than {_MAX_LEVELS} levels")
    for name in schema.values:
        if name not in _KNOWN and schema.has(name):
            raise schema.wrong(
                name, "is no member of Schema; JSON schemas go into the member with JsonSchema in its name"
            )
    read = {**_types(schema), **_bounds(schema), **_children(schema, depth)}
    if schema.has("required"):
        read["required"] = schema.texts("required")
    if schema.has("default"):
        read["default"] = _value(schema, "default")
    if schema.has("example"):
        read["examples"] = [_value(schema, "example")]
    return read


def _value(schema: ProtoFields, name: str) -> Any:
    value = schema.get(name)
    if deeper_than(MAX_DEPTH, value):
        raise schema.wrong(name, f"must not nest deeper than {MAX_DEPTH} levels")
    return value


def _types(schema: ProtoFields) -> dict[str, Any]:
    """``type``, which clients also write in small letters, ``enum``, and the texts that describe."""
    read: dict[str, Any] = {}
    kind = (schema.text_or_none("type") or "").upper()
    nullable = schema.flag("nullable")
    if kind and kind != "TYPE_UNSPECIFIED":
        if kind not in _TYPES:
            raise schema.wrong("type", f"must be one of {', '.join(_TYPES)}")
        read["type"] = [kind.lower(), "null"] if nullable and kind != "NULL" else kind.lower()
    for name in _TEXTS:
        text = schema.text_or_none(name)
        if text is not None:
            read["$ref" if name == "ref" else name] = text
    if schema.has("enum"):
        read["enum"] = [*schema.texts("enum"), *([None] if nullable else [])]
    return read


def _bounds(schema: ProtoFields) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for name in _COUNTS:
        value = schema.get(name)
        if isinstance(value, str) and value.isdecimal() and value.isascii():
            read[camel_case(name)] = _count(schema, name, value)
        elif value is not None:
            read[camel_case(name)] = schema.integer_or_none(name, 0, _WHOLE)
    for name in ("minimum", "maximum"):
        if schema.has(name):
            bound = schema.number_or_none(name, -1e300, 1e300) or 0.0
            read[name] = int(bound) if bound.is_integer() and abs(bound) < _WHOLE else bound
    return read


def _count(schema: ProtoFields, name: str, text: str) -> int:
    if len(text) > len(str(_WHOLE)):
        raise schema.wrong(name, f"must be in [0, {_WHOLE}]")
    return int(text)


def _children(schema: ProtoFields, depth: int) -> dict[str, Any]:
    """The schemas inside this one."""
    read: dict[str, Any] = {}
    items = schema.object_or_none("items")
    if items is not None:
        read["items"] = read_schema(items, depth + 1)
    for name, written in (("any_of", "anyOf"), ("prefix_items", "prefixItems")):
        if schema.has(name):
            read[written] = [read_schema(one, depth + 1) for one in schema.messages(name)]
    for name, written in (("properties", "properties"), ("defs", "$defs")):
        if schema.has(name):
            read[written] = _named(schema, name, depth)
    if isinstance(schema.get("additional_properties"), bool):
        read["additionalProperties"] = schema.get("additional_properties")
    elif schema.has("additional_properties"):
        read["additionalProperties"] = read_schema(schema.object("additional_properties"), depth + 1)
    return read


def _named(schema: ProtoFields, name: str, depth: int) -> dict[str, Any]:
    """A map from names, which are the client's own, to schemas; in ``propertyOrdering`` where there is one."""
    holder = Fields(schema.json_object_or_none(name) or {}, schema, name)
    first = [key for key in schema.texts("property_ordering") if key in holder.values]
    read: dict[str, Any] = {}
    for key in dict.fromkeys([*first, *holder.values]):
        one = holder.object(key)
        read[key] = read_schema(ProtoFields(one.values, holder, key), depth + 1)
    return read
