"""Grammars are judged without a model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.grammar import MAX_REASON, grammar_fault
from engine.types import Guide, GuideKind


@pytest.mark.parametrize(
    "guide",
    [
        Guide(GuideKind.JSON_SCHEMA, '{"type": "object"}'),
        Guide(GuideKind.JSON_SCHEMA, '{"type": "string", "minLength": 1000000000}'),
        Guide(GuideKind.REGEX, "a*"),
        Guide(GuideKind.LARK, 'start: <[151657]> "é"'),
        Guide(GuideKind.EBNF_GRAMMAR, "only the engine knows"),
        Guide(GuideKind.JSON),
    ],
)
def test_a_grammar_has_no_fault(guide: Guide) -> None:
    assert grammar_fault(guide) is None


@pytest.mark.parametrize(
    ("guide", "reason"),
    [
        (Guide(GuideKind.REGEX, "(a"), "invalid regex"),
        (Guide(GuideKind.REGEX, ""), "it lets nothing be written"),
        (Guide(GuideKind.LARK, "start: nowhere"), "nowhere"),
        (Guide(GuideKind.LARK, ""), "Empty grammar"),
        (Guide(GuideKind.JSON_SCHEMA, "{"), "expected"),
        (Guide(GuideKind.JSON_SCHEMA, "[]"), "must be an object"),
    ],
)
def test_a_fault_is_told_in_one_line(guide: Guide, reason: str) -> None:
    fault = grammar_fault(guide)
    assert fault is not None
    assert reason in fault
    assert len(fault) <= MAX_REASON
    assert "\n" not in fault


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "objekt"}, "Invalid type: objekt"),
        ({"not": {}}, 'Unimplemented keys: ["not"]'),
        ({"$ref": "https://example.com/schema.json"}, "does not fetch"),
        ({"type": "string", "format": "rainbow"}, "Unknown format: rainbow"),
        ({"required": ["a"], "properties": {"a": False}, "type": "object"}, "Unsatisfiable schema"),
        ({"$ref": "#"}, "it lets nothing be written"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "it lets nothing be written"),
        ({"allOf": [{"anyOf": [{"const": f"{i}{j}"} for j in range(6)]} for i in range(9)]}, ""),
    ],
)
def test_a_schema_that_cannot_be_ensured_has_a_fault(schema: Any, reason: str) -> None:
    fault = grammar_fault(Guide(GuideKind.JSON_SCHEMA, json.dumps(schema)))
    assert fault is not None
    assert reason in fault


def test_a_schema_that_is_nested_without_end_does_no_harm() -> None:
    deep = '{"type": "array", "items": ' * 3000 + "{}" + "}" * 3000
    assert "recursion limit" in (grammar_fault(Guide(GuideKind.JSON_SCHEMA, deep)) or "")
