"""Which parsers a model's replies need, told by its chat template: that is where the formats it was trained on are written out."""

from __future__ import annotations

from dataclasses import dataclass

from adapter.parsing.reasoning import require_reasoning_family
from adapter.parsing.tools.registry import require_tool_family

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ParserChoice:
    """Names of parsers that exist."""

    tool_parser: str
    reasoning_parser: str


def choose_parsers(chat_template: str, tool_parser: str = AUTO, reasoning_parser: str = AUTO) -> ParserChoice:
    """``auto`` goes by the template. A template without a known format gets ``xml``: visible text, and the fallback of last resort.

    Raises: UnknownParser (a ValueError), with the names that there are.
    """
    choice = ParserChoice(
        _tool_parser(chat_template) if tool_parser == AUTO else tool_parser,
        _reasoning_parser(chat_template) if reasoning_parser == AUTO else reasoning_parser,
    )
    require_tool_family(choice.tool_parser)
    require_reasoning_family(choice.reasoning_parser)
    return choice


def _tool_parser(chat_template: str) -> str:
    if "<tool_call>" in chat_template and "<function=" not in chat_template:
        return "hermes"
    return "xml"


def _reasoning_parser(chat_template: str) -> str:
    return "think" if "<think>" in chat_template or "</think>" in chat_template else "none"
