"""Typed reads from the script's JSON. Every error says where: ``rules[2].ids: ...``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any


class ScriptError(ValueError):
    """The script is malformed; ``str(error)`` names the rule and the field."""


class Fields:
    """The members of one object. Each ``read`` takes a member; ``finish`` refuses those that nobody took."""

    def __init__(self, document: Any, where: str) -> None:
        self._where = where
        if not isinstance(document, dict):
            raise ScriptError(f"{where}: not an object")
        self.document: dict[str, Any] = document
        self._taken: set[str] = set()

    def error(self, name: str, what: str) -> ScriptError:
        return ScriptError(f"{self._path(name)}: {what}")

    def finish(self) -> None:
        """Raises: ScriptError, if there are members of other names."""
        unknown = sorted(set(self.document) - self._taken)
        if unknown:
            raise self.error(unknown[0], f"unknown; known are {', '.join(sorted(self._taken))}")

    def object(self, name: str) -> Fields | None:
        value = self._take(name)
        return None if value is None else Fields(value, self._path(name))

    def objects(self, name: str) -> list[Fields]:
        return [Fields(item, f"{self._path(name)}[{i}]") for i, item in enumerate(self._list(name) or [])]

    def text(self, name: str) -> str | None:
        value = self._take(name)
        if value is not None and not isinstance(value, str):
            raise self.error(name, "not a text")
        return value

    def regex(self, name: str) -> re.Pattern[str] | None:
        pattern = self.text(name)
        try:
            return None if pattern is None else re.compile(pattern)
        except re.error as error:
            raise self.error(name, f"not a regular expression: {error}") from None

    def flag(self, name: str) -> bool:
        value = self._take(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, "not true or false")
        return bool(value)

    def choice(self, name: str, choices: Iterable[str], default: str | None) -> str:
        value = self._take(name)
        names = [str(choice) for choice in choices]
        if value is None and default is not None:
            return default
        if value not in names:
            raise self.error(name, f"not one of {', '.join(names)}")
        return str(value)

    def integer(self, name: str, default: Any, *, minimum: int, maximum: float = math.inf) -> Any:
        value = self._take(name)
        if value is None:
            return default
        if not _is_finite(value) or value != int(value) or not minimum <= value <= maximum:
            raise self.error(name, f"not an integer {_range(minimum, maximum)}")
        return int(value)

    def number(self, name: str, default: Any, *, minimum: float, maximum: float = math.inf) -> Any:
        value = self._take(name)
        if value is None:
            return default
        if not _is_finite(value) or not minimum <= value <= maximum:
            raise self.error(name, f"not a number {_range(minimum, maximum)}")
        return float(value)

    def ids(self, name: str) -> tuple[int, ...] | None:
        values = self._list(name)
        for i, value in enumerate(values or []):
            if isinstance(value, bool) or not isinstance(value, int) or not -(2**31) <= value < 2**31:
                raise self.error(f"{name}[{i}]", "not a 32-bit integer")
        return None if values is None else tuple(values)

    def numbers(self, name: str) -> tuple[float, ...] | None:
        values = self._list(name)
        for i, value in enumerate(values or []):
            if not _is_number(value):
                raise self.error(f"{name}[{i}]", "not a number")
        return None if values is None else tuple(float(value) for value in values)

    def _list(self, name: str) -> list[Any] | None:
        value = self._take(name)
        if value is not None and not isinstance(value, list):
            raise self.error(name, "not a list")
        return value

    def _take(self, name: str) -> Any:
        self._taken.add(name)
        return self.document.get(name)

    def _path(self, name: str) -> str:
        return f"{self._where}.{name}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value)


def _range(minimum: float, maximum: float) -> str:
    return f"of at least {minimum}" if maximum == math.inf else f"between {minimum} and {maximum}"
