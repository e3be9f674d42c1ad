"""How the families' chat templates write calls: the other way round from their parsers. Pure.

    opens  [before_name NAME before_arguments ARGUMENTS after_arguments] separator [...] ...  closes

The parts are text; structure tokens in it are spelled out. Arguments are one JSON object, or parameters one by one
(``ParameterFormat``). The formats' sources are named where they are parsed (``adapter.parsing.tools``). A family that is not in the
table cannot be held to a grammar yet: harmony, in which every part is a message, and the pythonic forms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class ParameterFormat:
    """A parameter is ``before_key KEY before_text TEXT after_value``, and of one that is no string
    ``before_key KEY before_json JSON after_value``."""

    before_key: str
    before_text: str
    before_json: str
    after_value: str
    text_ends: tuple[str, ...] = ()
    """What does not stand in a text, since the parser would take it for markup."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """See the module. ``opens`` and ``closes`` stand around all calls of a reply."""

    trigger: str
    """The marker that ``opens``, or without it ``before_name``, begins with; in a reply it stands nowhere else. Empty where only
    the place of a call tells it from text."""
    before_name: str
    before_arguments: str
    after_arguments: str
    opens: str = ""
    separator: str = ""
    closes: str = ""
    name_is_json: bool = False
    """The name stands as a JSON string, not bare."""
    after_name: str = ""
    """A regular expression of what follows the name without being a part of it."""
    parameters: ParameterFormat | None = None
    """None: the arguments are one JSON object."""


_HERMES = CallFormat(
    trigger="<tool_call>",
    before_name='<tool_call>\n{"name": ',
    before_arguments=', "arguments": ',
    after_arguments="}\n</tool_call>",
    separator="\n",
    name_is_json=True,
)
_XML = CallFormat(
    trigger="<tool_call>",
    before_name="<tool_call>\n<function=",
    before_arguments=">\n",
    after_arguments="</function>\n</tool_call>",
    separator="\n",
    parameters=ParameterFormat(
        "<parameter=", ">\n", ">\n", "\n</parameter>\n", ("</parameter>", "<parameter=", "</function>")
    ),
)
_GLM_45 = CallFormat(
    trigger="<tool_call>",
    before_name="<tool_call>",
    before_arguments="\n",
    after_arguments="</tool_call>",
    separator="\n",
    parameters=ParameterFormat(
        "<arg_key>",
        "</arg_key>\n<arg_value>",
        "</arg_key>\n<arg_value>",
        "</arg_value>\n",
        ("<arg_key>", "<arg_value>"),
    ),
)
_GLM_47 = CallFormat(
    trigger="<tool_call>",
    before_name="<tool_call>",
    before_arguments="",
    after_arguments="</tool_call>",
    parameters=ParameterFormat(
        "<arg_key>", "</arg_key><arg_value>", "</arg_key><arg_value>", "</arg_value>", ("<arg_key>", "<arg_value>")
    ),
)
_KIMI_K2 = CallFormat(
    trigger="<|tool_calls_section_begin|>",
    opens="<|tool_calls_section_begin|>",
    before_name="<|tool_call_begin|>functions.",
    after_name=":[0-9]{1,4}",
    before_arguments="<|tool_call_argument_begin|>",
    after_arguments="<|tool_call_end|>",
    closes="<|tool_calls_section_end|>",
)
_DEEPSEEK_V3 = CallFormat(
    trigger="<｜tool▁calls▁begin｜>",
    opens="<｜tool▁calls▁begin｜>",
    before_name="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    before_arguments="\n```json\n",
    after_arguments="\n```<｜tool▁call▁end｜>",
    separator="\n",
    closes="<｜tool▁calls▁end｜>",
)
_DEEPSEEK_V31 = CallFormat(
    trigger="<｜tool▁calls▁begin｜>",
    opens="<｜tool▁calls▁begin｜>",
    before_name="<｜tool▁call▁begin｜>",
    before_arguments="<｜tool▁sep｜>",
    after_arguments="<｜tool▁call▁end｜>",
    closes="<｜tool▁calls▁end｜>",
)
_DEEPSEEK_V32 = CallFormat(
    trigger="<｜DSML｜function_calls>",
    opens="<｜DSML｜function_calls>\n",
    before_name='<｜DSML｜invoke name="',
    before_arguments='">\n',
    after_arguments="</｜DSML｜invoke>\n",
    closes="</｜DSML｜function_calls>",
    parameters=ParameterFormat(
        '<｜DSML｜parameter name="', '" string="true">', '" string="false">', "</｜DSML｜parameter>\n", ("｜DSML｜",)
    ),
)
_MINIMAX_M2 = CallFormat(
    trigger="<minimax:tool_call>",
    opens="<minimax:tool_call>\n",
    before_name='<invoke name="',
    before_arguments='">\n',
    after_arguments="</invoke>\n",
    closes="</minimax:tool_call>",
    parameters=ParameterFormat(
        '<parameter name="', '">', '">', "</parameter>\n", ("</parameter>", "<parameter", "</invoke>", "<invoke")
    ),
)
_MISTRAL = CallFormat(trigger="[TOOL_CALLS]", before_name="[TOOL_CALLS]", before_arguments="[ARGS]", after_arguments="")
_LLAMA_JSON = CallFormat(
    trigger="",
    before_name='{"name": ',
    before_arguments=', "parameters": ',
    after_arguments="}",
    separator="; ",
    name_is_json=True,
)

CALL_FORMATS: Mapping[str, CallFormat] = MappingProxyType(
    {
        "hermes": _HERMES,
        "qwen25": _HERMES,
        "xml": _XML,
        "qwen3_coder": _XML,
        "glm45": _GLM_45,
        "glm47": _GLM_47,
        "kimi_k2": _KIMI_K2,
        "deepseek_v3": _DEEPSEEK_V3,
        "deepseek_v31": _DEEPSEEK_V31,
        "deepseek_v32": _DEEPSEEK_V32,
        "minimax_m2": _MINIMAX_M2,
        "mistral": _MISTRAL,
        "llama": _LLAMA_JSON,
        "llama3_json": _LLAMA_JSON,
    }
)
"""By the name of the tool parser. Where a parser reads several forms, it is the one of the newest models."""
