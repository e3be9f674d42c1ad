"""How the families' chat templates write calls with JSON arguments: the other way round from their parsers. Pure.

    opens  [before_name NAME before_arguments ARGUMENTS after_arguments] separator [...] ...  closes

The parts are text; structure tokens in it are spelled out. The formats' sources are named where they are parsed
(``adapter.parsing.tools``). A family that is not in the table cannot be held to a grammar yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class CallFormat:
    """See the module. ``opens`` and ``closes`` stand around all calls of a reply."""

    trigger: str
    """The marker that ``opens``, or without it ``before_name``, begins with. In a reply it stands nowhere else."""
    before_name: str
    before_arguments: str
    after_arguments: str
    opens: str = ""
    separator: str = ""
    closes: str = ""
    name_is_json: bool = False
    """The name stands as a JSON string, not bare."""


_HERMES = CallFormat(
    trigger="<tool_call>",
    before_name='<tool_call>\n{"name": ',
    before_arguments=', "arguments": ',
    after_arguments="}\n</tool_call>",
    separator="\n",
    name_is_json=True,
)

CALL_FORMATS: Mapping[str, CallFormat] = MappingProxyType({"hermes": _HERMES, "qwen25": _HERMES})
"""By the name of the tool parser."""
