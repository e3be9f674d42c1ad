"""The formats of DeepSeek V3, R1 and V3.1:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>...<｜tool▁calls▁end｜>

and, in V3 and R1, the call's type before the separator, name and fenced arguments behind it:

    <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME
    ```json
    {...}
    ```<｜tool▁call▁end｜>

Source: the chat templates of deepseek-ai/DeepSeek-V3, -R1 and -V3.1 (vLLM, ``examples/tool_chat_template_deepseekv3.jinja`` and
``tool_chat_template_deepseekv31.jinja``). Reasoning is ``<think>`` ... ``</think>``. ``sectioned.py`` says how calls are read; one
parser serves both, since only V3 writes a name behind the separator. A missing fence is tolerated.
"""

from __future__ import annotations

import re

from adapter.parsing.base import BLANK, ReplyContext
from adapter.parsing.tools.family import ToolFamily
from adapter.parsing.tools.marked import Piece
from adapter.parsing.tools.sectioned import MAX_HEAD, SectionedCalls, SectionMarkers
from adapter.parsing.tools.streamed import JsonCall
from adapter.types import ReplyEvent

SECTION = SectionMarkers(
    section="<｜tool▁calls▁begin｜>",
    end_section="<｜tool▁calls▁end｜>",
    call="<｜tool▁call▁begin｜>",
    arguments="<｜tool▁sep｜>",
    end_call="<｜tool▁call▁end｜>",
)
TYPE = "function"
"""The only type of call that there is."""
FENCE = "`"

_NAME = re.compile(rf"[{BLANK}]*([^{BLANK}{{`\ud800-\udfff]+)[{BLANK}]*(?:```(?:json)?)?[{BLANK}]*")


class DeepSeekCalls(SectionedCalls):
    """See the module."""

    def __init__(self, context: ReplyContext) -> None:
        super().__init__(context, SECTION)
        self._head_name = ""
        self._behind = ""
        """What stands behind the separator, until it is known whether that is a name or the arguments."""

    def _begin_call(self, name: str) -> None:
        self._head_name = name
        self._step = self._after_separator

    def _after_separator(self, piece: Piece, events: list[ReplyEvent]) -> None:
        if not piece.marker:
            self._behind += piece.text
        begun = self._behind.lstrip(BLANK)
        if begun.startswith("{") or (begun and self._head_name != TYPE) or (piece.marker and not begun):
            self._read_arguments(self._head_name, 0, events)
        elif (name := _NAME.match(begun)) and (piece.marker or begun[name.end() :].startswith("{")):
            self._read_arguments(name[1], len(self._behind) - len(begun) + name.end(), events)
        elif piece.marker or len(self._behind) > MAX_HEAD:
            self._refuse(events)
        if piece.marker:
            self._step(piece, events)

    def _read_arguments(self, name: str, begin: int, events: list[ReplyEvent]) -> None:
        """``begin``: where in the text behind the separator they do."""
        self._call = JsonCall(self._markers.spelled(name), self._markers, ignored=BLANK + FENCE)
        self._step = self._arguments
        self._pending.append(self._behind[:begin])
        arguments, self._behind = self._behind[begin:], ""
        self._arguments(Piece(arguments), events)

    def _refuse(self, events: list[ReplyEvent]) -> None:
        if self._behind:
            self._pending.append(self._behind)
            self._behind = ""
        super()._refuse(events)


DEEPSEEK = ToolFamily(DeepSeekCalls, SECTION.all, call_tags=SECTION.section_tags, closers=(3 * FENCE, *SECTION.closers))
