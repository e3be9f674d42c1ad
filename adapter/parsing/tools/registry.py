"""The families of tool-call formats by name: one entry per family, and what it does is in one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from adapter.parsing.base import ToolParser, UnknownParser
from adapter.parsing.tools.hermes import hermes_calls
from adapter.parsing.tools.xml import xml_calls
from adapter.types import Tool


@dataclass(frozen=True, slots=True)
class ToolFamily:
    """``parser`` makes the parser of one reply to a request with these tools."""

    parser: Callable[[Sequence[Tool]], ToolParser]
    shows_end_token: bool = False
    """The text is passed on exactly as decoded, the token that ended the reply included."""


TOOL_FAMILIES: Mapping[str, ToolFamily] = MappingProxyType(
    {
        "none": ToolFamily(xml_calls, shows_end_token=True),
        "xml": ToolFamily(xml_calls),
        "hermes": ToolFamily(hermes_calls),
        "qwen3_coder": ToolFamily(xml_calls),  # this and the next are the names that SGLang and slime use
        "qwen25": ToolFamily(hermes_calls),
    }
)


def require_tool_family(name: str) -> ToolFamily:
    """Raises: UnknownParser."""
    if name not in TOOL_FAMILIES:
        raise UnknownParser("tool", name, TOOL_FAMILIES)
    return TOOL_FAMILIES[name]
