"""The format of Kimi K2:

    <|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>{...}<|tool_call_end|>...
    <|tool_calls_section_end|>

Source: ``docs/tool_call_guidance.md`` and ``chat_template.jinja`` of moonshotai/Kimi-K2-Instruct and Kimi-K2-Thinking (the template
is also in llama.cpp, ``models/templates/Kimi-K2-Thinking.jinja``). Reasoning is ``<think>`` ... ``</think>``.

``sectioned.py`` says how it is read. A name without ``functions.`` or without an index is tolerated too.
"""

from __future__ import annotations

import re

from adapter.parsing.base import ReplyContext
from adapter.parsing.tools.family import ToolFamily
from adapter.parsing.tools.sectioned import SectionedCalls, SectionMarkers

SECTION = SectionMarkers(
    section="<|tool_calls_section_begin|>",
    end_section="<|tool_calls_section_end|>",
    call="<|tool_call_begin|>",
    arguments="<|tool_call_argument_begin|>",
    end_call="<|tool_call_end|>",
)
NAMESPACE = "functions."

_INDEX = re.compile(r":\d+\Z")


class KimiCalls(SectionedCalls):
    """See the module."""

    def __init__(self, context: ReplyContext) -> None:
        super().__init__(context, SECTION)

    def _name_in(self, head: str) -> str:
        return _INDEX.sub("", head).removeprefix(NAMESPACE)


KIMI = ToolFamily(KimiCalls, SECTION.all, call_tags=SECTION.section_tags, closers=SECTION.closers)
