"""The format of DeepSeek V3.2 (DSML):

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="NAME">
    <｜DSML｜parameter name="KEY" string="true|false">VALUE</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

Source: ``encoding/encoding_dsv32.py`` of deepseek-ai/DeepSeek-V3.2 (vLLM, ``vllm/tokenizers/deepseek_v32_encoding.py``). The word
``｜DSML｜`` is one token of the vocabulary, the rest of a tag is text. Strings stand as they are, everything else as JSON.
Reasoning is ``<think>`` ... ``</think>``. ``invoke.py`` says how calls are read; a value marked as JSON that is none is a string,
and ``ill_formed``.
"""

from __future__ import annotations

from adapter.parsing.base import ReplyContext
from adapter.parsing.tools.family import ToolFamily
from adapter.parsing.tools.invoke import InvokeCalls, InvokeTags

DSML = "｜DSML｜"
TAGS = InvokeTags(
    opening=f"<{DSML}function_calls>",
    closing=f"</{DSML}function_calls>",
    invoke=f'<{DSML}invoke name="',
    end_invoke=f"</{DSML}invoke>",
    parameter=f'<{DSML}parameter name="',
    end_parameter=f"</{DSML}parameter>",
)


def dsml_calls(context: ReplyContext) -> InvokeCalls:
    """A parser for one reply."""
    return InvokeCalls(context, TAGS, lead=2)


DEEPSEEK_DSML = ToolFamily(dsml_calls, (DSML,), call_tags=TAGS.block)
