"""Which parsers a model's replies need, told by its chat template: that is where the formats it was trained on are written out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adapter.parsing.reasoning import require_reasoning_family
from adapter.parsing.tools.registry import require_tool_family

AUTO = "auto"

_TOOL_SIGNS = (
    ("<minimax:tool_call>", "minimax_m2"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("｜DSML｜", "deepseek_v32"),
    ("<｜tool▁calls▁begin｜>", "deepseek_v3"),
    ("<arg_key>", "glm45"),
    ("<start_function_call>", "function_gemma"),
    ("<|tool_call>", "gemma4"),
    ("<|channel|>", "gpt_oss"),
    ("[TOOL_CALLS]", "mistral"),
    ("<function=", "xml"),
    ("<tool_call>", "hermes"),
)
"""What a chat template is told by, and the family of its calls: the first that it has decides."""
_TURN_SIGNS = (
    ("<|im_middle|>", "kimi_k2"),
    ("<start_of_turn>", "gemma3"),
    ("<|python_tag|>", "llama"),
    ("<|start_header_id|>", "llama"),
    ("<|header_start|>", "llama"),
)
"""How turns are written, for models whose templates may leave calls out or write them without any sign."""
_CALLS = "tool_calls"
"""The field of a message that a template reads if it writes calls at all."""
_REASONING_SIGNS = (("<think>", "think"), ("</think>", "think"), ("[THINK]", "mistral"))


@dataclass(frozen=True, slots=True)
class ParserChoice:
    """Names of parsers that exist."""

    tool_parser: str
    reasoning_parser: str
    tool_format_known: bool = True
    """False: the template was to tell the format of calls, and writes none that is known."""


def choose_parsers(chat_template: str, tool_parser: str = AUTO, reasoning_parser: str = AUTO) -> ParserChoice:
    """``auto`` goes by the template. A template without a known format gets ``xml``: visible text, and the fallback of last resort.

    Raises: UnknownParser (a ValueError), with the names that there are.
    """
    told = _told_by(_TOOL_SIGNS, chat_template)
    likely = _told_by(_TURN_SIGNS, chat_template)
    is_known = told is not None or (likely is not None and _CALLS in chat_template)
    choice = ParserChoice(
        (told or likely or "xml") if tool_parser == AUTO else tool_parser,
        (_told_by(_REASONING_SIGNS, chat_template) or "none") if reasoning_parser == AUTO else reasoning_parser,
        tool_format_known=tool_parser != AUTO or is_known,
    )
    require_tool_family(choice.tool_parser)
    require_reasoning_family(choice.reasoning_parser)
    return choice


def _told_by(signs: Sequence[tuple[str, str]], chat_template: str) -> str | None:
    return next((name for sign, name in signs if sign in chat_template), None)
