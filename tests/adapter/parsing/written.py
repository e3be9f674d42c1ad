"""Calls written out as the models of each family write them, for tests to read back; from the formats' sources."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hypothesis import strategies as st

from tests.adapter.parsing.replies import LOOKUP, READ_FILE, tool
from tests.adapter.parsing.test_json_scanner import OBJECTS

Call = tuple[str, dict[str, Any]]

TYPED = tool(
    "typed",
    text={"type": "string"},
    count={"type": "integer"},
    ratio={"type": "number"},
    flag={"type": "boolean"},
    items={"type": "array"},
    options={"type": "object"},
    nothing={"type": "null"},
)
TOOLS = (LOOKUP, READ_FILE, TYPED)
NAMES = ("lookup", "read_file", "typed")


def hermes(calls: Sequence[Call]) -> str:
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>" for name, arguments in calls
    )


def plain(value: Any) -> str:
    """A value without quotes: strings as they are, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def xml(calls: Sequence[Call]) -> str:
    def parameter(key: str, value: Any) -> str:
        return f"<parameter={key}>\n{plain(value)}\n</parameter>\n"

    def call(name: str, arguments: dict[str, Any]) -> str:
        inside = "".join(parameter(*item) for item in arguments.items())
        return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"

    return "\n".join(call(*item) for item in calls)


def glm(calls: Sequence[Call], newline: str = "\n") -> str:
    def parameter(key: str, value: Any) -> str:
        return f"<arg_key>{key}</arg_key>{newline}<arg_value>{plain(value)}</arg_value>{newline}"

    def call(name: str, arguments: dict[str, Any]) -> str:
        return f"<tool_call>{name}{newline}{''.join(parameter(*item) for item in arguments.items())}</tool_call>"

    return newline.join(call(*item) for item in calls)


def glm47(calls: Sequence[Call]) -> str:
    return glm(calls, newline="")


def deepseek_v3(calls: Sequence[Call]) -> str:
    written = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments)}\n```<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


def deepseek_v31(calls: Sequence[Call]) -> str:
    written = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(arguments)}<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


def dsml(calls: Sequence[Call]) -> str:
    def parameter(key: str, value: Any) -> str:
        is_string = str(isinstance(value, str)).lower()
        return f'<｜DSML｜parameter name="{key}" string="{is_string}">{plain(value)}</｜DSML｜parameter>'

    def call(name: str, arguments: dict[str, Any]) -> str:
        inside = "\n".join(parameter(*item) for item in arguments.items())
        return f'<｜DSML｜invoke name="{name}">\n{inside}\n</｜DSML｜invoke>'

    written = "\n".join(call(*item) for item in calls)
    return f"\n\n<｜DSML｜function_calls>\n{written}\n</｜DSML｜function_calls>"


def kimi(calls: Sequence[Call]) -> str:
    written = "".join(
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{json.dumps(arguments)}<|tool_call_end|>"
        for index, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>"


def mistral_list(calls: Sequence[Call]) -> str:
    return "[TOOL_CALLS]" + json.dumps(
        [{"name": name, "arguments": arguments, "id": "abcdefghi"} for name, arguments in calls], ensure_ascii=False
    )


def mistral_named(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments, ensure_ascii=False)}" for name, arguments in calls)


def mistral_with_ids(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{name}[CALL_ID]abcdefghi[ARGS]{json.dumps(arguments)}" for name, arguments in calls)


def llama_json(calls: Sequence[Call]) -> str:
    return "; ".join(f'{{"name": "{name}", "parameters": {json.dumps(arguments)}}}' for name, arguments in calls)


def llama_tagged(calls: Sequence[Call]) -> str:
    return "<|python_tag|>" + "; ".join(
        json.dumps({"type": "function", "name": name, "parameters": arguments}) for name, arguments in calls
    )


def pythonic(calls: Sequence[Call]) -> str:
    return f"[{', '.join(map(python_call, calls))}]"


def python_call(call: Call) -> str:
    name, arguments = call
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def llama4(calls: Sequence[Call]) -> str:
    return f"<|python_start|>{pythonic(calls)}<|python_end|>"


def gemma4(calls: Sequence[Call]) -> str:
    return "".join(f"<|tool_call>call:{name}{gemma_value(arguments, chr(34))}<tool_call|>" for name, arguments in calls)


def function_gemma(calls: Sequence[Call]) -> str:
    return "".join(
        f"<start_function_call>call:{name}{gemma_value(arguments, 'escape')}<end_function_call>"
        for name, arguments in calls
    )


def gemma_value(value: Any, quote: str) -> str:
    mark = "<escape>" if quote == "escape" else f"<|{quote}|>"
    match value:
        case str():
            return f"{mark}{value}{mark}"
        case dict():
            return "{" + ",".join(f"{key}:{gemma_value(item, quote)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(gemma_value(item, quote) for item in value) + "]"
        case bool():
            return str(value).lower()
        case _:
            return str(value)


def minimax(calls: Sequence[Call]) -> str:
    def parameter(key: str, value: Any) -> str:
        return f'<parameter name="{key}">{value if isinstance(value, str) else json.dumps(value)}</parameter>\n'

    def invoke(call: Call) -> str:
        return f'<invoke name="{call[0]}">\n{"".join(parameter(*item) for item in call[1].items())}</invoke>\n'

    return f"\n<minimax:tool_call>\n{''.join(map(invoke, calls))}</minimax:tool_call>"


def harmony(calls: Sequence[Call]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json.dumps(arguments)}<|call|>"
        for name, arguments in calls
    )


IDENTIFIERS = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
)
NESTED = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(IDENTIFIERS, inner, max_size=3),
    max_leaves=8,
)
PYTHON_NESTED = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
TYPED_ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": st.text(max_size=12),
        "count": st.integers(-(2**70), 2**70),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.booleans(),
        "items": st.lists(NESTED, max_size=3),
        "options": st.dictionaries(st.text(max_size=4), NESTED, max_size=3),
        "nothing": st.none(),
    },
)


MARKUP = re.compile(r"<[|/a-z｜]|\[[A-Z/]|```")
"""What may be markup of some format. Hypothesis draws literals of the code under test, too."""


def calls_with(
    arguments: st.SearchStrategy[dict[str, Any]], names: Sequence[str] = NAMES
) -> st.SearchStrategy[list[Call]]:
    plain = arguments.filter(lambda value: not MARKUP.search(json.dumps(value, ensure_ascii=False)))
    return st.lists(st.tuples(st.sampled_from(names), plain), min_size=1, max_size=3)


class Form:
    """One way in which the models of a family write calls."""

    def __init__(
        self, parser: str, write: Callable[[Sequence[Call]], str], calls: st.SearchStrategy[list[Call]]
    ) -> None:
        self.parser = parser
        self.write = write
        self.calls = calls


_JSON = calls_with(OBJECTS)
_PYTHON = calls_with(st.dictionaries(IDENTIFIERS, PYTHON_NESTED, max_size=3))
_GEMMA = calls_with(st.dictionaries(IDENTIFIERS, NESTED, max_size=3))

_TYPED = calls_with(TYPED_ARGUMENTS, ["typed"])

FORMS: Mapping[str, Form] = MappingProxyType(
    {
        "hermes": Form("hermes", hermes, _JSON),
        "xml": Form("xml", xml, _TYPED),
        "fallback": Form("none", xml, _TYPED),
        "glm": Form("glm45", glm, _TYPED),
        "glm47": Form("glm45", glm47, _TYPED),
        "deepseek_v3": Form("deepseek_v3", deepseek_v3, _JSON),
        "deepseek_v31": Form("deepseek_v3", deepseek_v31, _JSON),
        "dsml": Form("deepseek_v32", dsml, _GEMMA),
        "kimi": Form("kimi_k2", kimi, _JSON),
        "mistral_list": Form("mistral", mistral_list, _JSON),
        "mistral_named": Form("mistral", mistral_named, _JSON),
        "mistral_with_ids": Form("mistral", mistral_with_ids, _JSON),
        "llama_json": Form("llama", llama_json, _JSON),
        "llama_tagged": Form("llama", llama_tagged, _JSON),
        "pythonic": Form("llama", pythonic, _PYTHON),
        "llama4": Form("llama", llama4, _PYTHON),
        "gemma4": Form("gemma4", gemma4, _GEMMA),
        "function_gemma": Form("function_gemma", function_gemma, _GEMMA),
        "minimax": Form("minimax_m2", minimax, _TYPED),
        "harmony": Form("gpt_oss", harmony, _JSON),
    }
)
FORM_NAMES = tuple(FORMS)
