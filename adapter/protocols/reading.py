"""Typed readers over a request's JSON: every mistake of a client is a BadRequest that names the field as the client wrote it.

``Fields`` is one JSON object and its place in the body. Each method reads one member and says what it must be; a member that is
null counts as absent. Paths (``messages.0.content.2.type``) are put together only when something is wrong, so reading a long
history costs a few dictionary look-ups per message.

Bounds: arrays hold at most ``MAX_ITEMS``, JSON that is passed on (schemas, arguments) nests at most ``MAX_DEPTH`` deep. The size of
the whole body is the HTTP layer's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from adapter.errors import BadRequest

MAX_ITEMS = 100_000
"""Anthropic's documented limit for the messages of one request."""

MAX_DEPTH = 100
"""Levels of JSON in a value that is passed on. orjson reads 1024 but writes only 254, and the value gets wrapped in more."""

INT32_MAX = 2**31 - 1


class Fields:
    """One JSON object of a request. Every reader raises BadRequest when the member is not what it must be."""

    __slots__ = ("_index", "_key", "_parent", "values")

    def __init__(
        self, values: Mapping[str, Any], parent: Fields | None = None, key: str = "", index: int | None = None
    ) -> None:
        """``key``, and ``index`` in an array, are the object's place in its parent."""
        self.values = values
        self._parent = parent
        self._key = key
        self._index = index

    @classmethod
    def of_body(cls, body: Any) -> Fields:
        if not isinstance(body, Mapping):
            raise BadRequest(f"must be a JSON object, not {_kind(body)}", field="body")
        return cls(body)

    @property
    def path(self) -> str:
        """Where the object stands in the body; empty for the body itself."""
        if self._parent is None:
            return ""
        place = self._parent.at(self._key)
        return place if self._index is None else f"{place}.{self._index}"

    def at(self, name: str) -> str:
        """Where the member ``name`` stands in the body."""
        prefix = self.path
        return f"{prefix}.{name}" if prefix else name

    def wrong(self, name: str, message: str) -> BadRequest:
        """The error to raise for the member ``name``."""
        return BadRequest(message, field=self.at(name))

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def text_or_none(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is None or isinstance(value, str):
            return value
        raise self._not(name, "a string", value)

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if isinstance(value, str):
            return value
        raise self._not(name, "a string", value)

    def name_text(self, name: str) -> str:
        """A string that names something: not empty."""
        value = self.text(name)
        if not value:
            raise self.wrong(name, "must not be empty")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        raise self._not(name, "true or false", value)

    def integer_or_none(self, name: str, low: int, high: int = INT32_MAX) -> int | None:
        """A whole number in ``[low, high]``; ``7.0`` is 7."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._not(name, "an integer", value)
        if not low <= value <= high:
            raise self.wrong(name, f"must be in [{low}, {high}]")
        return value

    def number_or_none(self, name: str, low: float, high: float) -> float | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._not(name, "a number", value)
        if not low <= value <= high:
            raise self.wrong(name, f"must be in [{low:g}, {high:g}]")
        return float(value)

    def object_or_none(self, name: str) -> Fields | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, dict):
            return Fields(value, self, name)
        raise self._not(name, "an object", value)

    def object(self, name: str) -> Fields:
        value = self.object_or_none(name)
        if value is None:
            raise self._not(name, "an object", None)
        return value

    def objects(self, name: str, first: int = 0) -> list[Fields]:
        """An array of objects; empty if absent. ``first`` items before these were taken out of it."""
        made = []
        for index, item in enumerate(self._array(name, first), first):
            if not isinstance(item, dict):
                raise self._not(f"{name}.{index}", "an object", item)
            made.append(Fields(item, self, name, index))
        return made

    def texts(self, name: str) -> list[str]:
        """An array of strings; empty if absent."""
        items = self._array(name)
        for index, item in enumerate(items):
            if not isinstance(item, str):
                raise self._not(f"{name}.{index}", "a string", item)
        return items

    def text_or_objects(self, name: str) -> str | list[Fields] | None:
        """A string or an array of objects, as messages' content is written; None if absent."""
        value = self.values.get(name)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, list):
            return self.objects(name)
        raise self._not(name, "a string or an array", value)

    def json_object_or_none(self, name: str) -> dict[str, Any] | None:
        """Any JSON object, to be passed on; not deeper than ``MAX_DEPTH``."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._not(name, "an object", value)
        if deeper_than(MAX_DEPTH, value):
            raise self.wrong(name, f"must not nest deeper than {MAX_DEPTH} levels")
        return value

    def _array(self, name: str, first: int = 0) -> list[Any]:
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._not(name, "an array", value)
        if first + len(value) > MAX_ITEMS:
            raise self.wrong(name, f"must hold at most {MAX_ITEMS} items")
        return value

    def _not(self, name: str, wanted: str, value: Any) -> BadRequest:
        if value is None and name not in self.values:
            return self.wrong(name, f"is required: {wanted}")
        return self.wrong(name, f"must be {wanted}, not {_kind(value)}")


def claim_name(tool: Fields, name: str, taken: set[str]) -> None:
    """From now on ``name`` is ``taken``. Raises: BadRequest, if it was already: a call could be of either tool."""
    if name in taken:
        raise tool.wrong("name", f"the model would see two tools named {name[:64]!r}")
    taken.add(name)


def deeper_than(levels: int, value: Any) -> bool:
    """Whether a JSON value nests more than ``levels`` arrays and objects."""
    try:
        text = orjson.dumps(value)
    except TypeError:  # it is nested too deeply for that, or holds a huge integer
        return _nests(levels, value)
    return text.count(b"{") + text.count(b"[") > levels and _nests(levels, value)


def _nests(levels: int, value: Any) -> bool:
    if isinstance(value, dict):
        return levels == 0 or any(_nests(levels - 1, item) for item in value.values())
    if isinstance(value, list):
        return levels == 0 or any(_nests(levels - 1, item) for item in value)
    return False


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    return _KINDS.get(type(value), "something else")


_KINDS: Mapping[type, str] = {
    type(None): "null",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}
