"""What happens to JSON values and orders on a client's side."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeVar

from tests.support.simulated_client.profile import Keys, Order, Profile

Item = TypeVar("Item")

LARGEST_EXPONENT = 1e21
"""From here on JavaScript writes whole numbers with an exponent."""


def mangled(value: Any, profile: Profile, schema: Mapping[str, Any], generator: random.Random) -> Any:
    """Arguments of a call as the client has them after it parsed them and made up its own object."""
    if profile.javascript_numbers:
        value = as_javascript(value)
    match profile.keys:
        case Keys.SCHEMA if isinstance(value, dict):
            known = [name for name in schema.get("properties", {}) if name in value]
            return {name: value[name] for name in [*known, *(name for name in value if name not in known)]}
        case Keys.SHUFFLED:
            return _shuffled_keys(value, generator)
    return value


def as_javascript(value: Any) -> Any:
    """A JSON value after ``JSON.parse``, to be written again: every number has been a double."""
    if isinstance(value, dict):
        return {name: as_javascript(member) for name, member in value.items()}
    if isinstance(value, list):
        return [as_javascript(member) for member in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    double = float(value)
    if double.is_integer() and abs(double) < LARGEST_EXPONENT:
        return int(Decimal(repr(double)))  # the shortest digits that give the double, then zeros
    return double


def rewritten(arguments: str, profile: Profile, schema: Mapping[str, Any], generator: random.Random) -> str:
    """The text of a call's arguments as a client writes it that has parsed it: compact, characters as they are."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    return json.dumps(mangled(value, profile, schema, generator), ensure_ascii=False, separators=(",", ":"))


def in_order(
    results: Sequence[tuple[str, str]], calls: Sequence[str], order: Order, generator: random.Random
) -> list[tuple[str, str]]:
    """Results as they are sent."""
    listed = list(results)
    match order:
        case Order.CALLS:
            listed.sort(key=lambda result: calls.index(result[0]))
        case Order.SHUFFLED:
            generator.shuffle(listed)
    return listed


def _shuffled_keys(value: Any, generator: random.Random) -> Any:
    if isinstance(value, dict):
        names = list(value)
        generator.shuffle(names)
        return {name: _shuffled_keys(value[name], generator) for name in names}
    if isinstance(value, list):
        return [_shuffled_keys(member, generator) for member in value]
    return value
