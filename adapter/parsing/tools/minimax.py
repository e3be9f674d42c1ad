"""The format of MiniMax M2:

    <minimax:tool_call>
    <invoke name="NAME">
    <parameter name="KEY">VALUE</parameter>
    </invoke>
    </minimax:tool_call>

Source: ``docs/tool_calling_guide.md`` and ``chat_template.jinja`` of MiniMaxAI/MiniMax-M2 (the template is also in llama.cpp,
``models/templates/unsloth-MiniMax-M2.jinja``). Reasoning is ``<think>`` ... ``</think>``. The outer tags are tokens, the inner ones
are text; a block may hold several calls, and a reply several blocks.

``invoke.py`` says how it is read.
"""

from __future__ import annotations

from adapter.parsing.base import ReplyContext
from adapter.parsing.tools.family import ToolFamily
from adapter.parsing.tools.invoke import InvokeCalls, InvokeTags

TAGS = InvokeTags(
    opening="<minimax:tool_call>",
    closing="</minimax:tool_call>",
    invoke='<invoke name="',
    end_invoke="</invoke>",
    parameter='<parameter name="',
    end_parameter="</parameter>",
)


def minimax_calls(context: ReplyContext) -> InvokeCalls:
    """A parser for one reply."""
    return InvokeCalls(context, TAGS, lead=1)


MINIMAX = ToolFamily(minimax_calls, TAGS.block, call_tags=TAGS.block)
