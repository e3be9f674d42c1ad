"""Reading Gemini's requests: JSON of protocol buffers, whose members may be written ``maxOutputTokens`` or ``max_output_tokens``.

Readers ask for the snake_case name; errors name the member as the client wrote it, or in lowerCamelCase if it is missing. Only the
members of messages have two names: what a client keeps in an object of its own (arguments, results, JSON schemas) is left as it is.

Source: protobuf.dev, "ProtoJSON Format", field names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from adapter.errors import BadRequest
from adapter.protocols.knobs import unused_names
from adapter.protocols.reading import Fields

_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")


class ProtoFields(Fields):
    """``Fields`` of one message. ``values`` has snake_case keys, whatever the client wrote."""

    __slots__ = ("_written",)

    def __init__(
        self, values: Mapping[str, Any], parent: Fields | None = None, key: str = "", index: int | None = None
    ) -> None:
        """Raises: BadRequest, if a member is there under both of its names."""
        self._written = {snake_case(name): name for name in values}
        super().__init__({snake_case(name): value for name, value in values.items()}, parent, key, index)
        if len(self._written) < len(values):
            twice = next(name for name in values if self._written[snake_case(name)] != name)
            raise BadRequest("is there under both of its names", field=super().at(twice))

    def written(self, name: str) -> str:
        """The member's name as the client spells it."""
        return self._written.get(name, camel_case(name))

    def at(self, name: str) -> str:
        first, dot, rest = name.partition(".")
        return super().at(self.written(first) + dot + rest)

    def object_or_none(self, name: str) -> ProtoFields | None:
        found = super().object_or_none(name)
        return None if found is None else ProtoFields(found.values, self, name)

    def object(self, name: str) -> ProtoFields:
        found = self.object_or_none(name)
        if found is None:
            raise self._not(name, "an object", None)
        return found

    def messages(self, name: str) -> list[ProtoFields]:
        """An array of messages; empty if absent."""
        return [ProtoFields(found.values, self, name, index) for index, found in enumerate(self.objects(name))]

    def word(self, name: str, known: Iterable[str]) -> str | None:
        """A member of an enum; None if absent or ``..._UNSPECIFIED``."""
        value = self.text_or_none(name)
        if value is None or value.endswith("_UNSPECIFIED"):
            return None
        if value not in known:
            raise self.wrong(name, f"must be one of {', '.join(known)}")
        return value

    def unused(self, known: Collection[str], prefix: str = "") -> list[str]:
        """Members not in ``known``, as the client wrote them, each with ``prefix``."""
        return [prefix + self.written(name) for name in unused_names(self, known)]


def snake_case(name: str) -> str:
    return _HUMP.sub(r"_\1", name).lower()


def camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
