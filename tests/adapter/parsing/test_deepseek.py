"""DeepSeek V3, R1, V3.1 (sections of calls) and V3.2 (DSML): what is particular to them."""

from __future__ import annotations

from typing import Any

import pytest

from adapter.parsing.tools.sectioned import MAX_HEAD
from adapter.types import ParsedModelOutput, ToolUse
from tests.adapter.parsing.marked_replies import both_ways, by_tokens
from tests.adapter.parsing.written import TOOLS

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEP, END_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
D = "｜DSML｜"


def output(text: str, *uses: tuple[str, dict[str, Any]], ill_formed: bool = False) -> ParsedModelOutput:
    return ParsedModelOutput(text=text, tool_uses=tuple(ToolUse(*use) for use in uses), ill_formed=ill_formed)


def section(*calls: str) -> str:
    return f"{BEGIN}{''.join(f'{CALL}{call}{END_CALL}' for call in calls)}{END}"


A = ("lookup", {"q": "a"})
FENCED = 'function<｜tool▁sep｜>lookup\n```json\n{"q": "a"}\n```'


@pytest.mark.parametrize(
    "call",
    [
        FENCED,
        f'lookup{SEP}{{"q": "a"}}',
        f'lookup {SEP} \n{{"q": "a"}}\n',
        f'function{SEP}lookup\n{{"q": "a"}}',
        f'function{SEP}\nlookup ```\n{{"q": "a"}}```',
        f'function{SEP}lookup```json{{"q": "a"}}\n```\n',
    ],
)
def test_all_ways_to_write_a_call(call: str) -> None:
    assert both_ways(f"Look.{section(call, FENCED)}", "deepseek_v3") == output("Look.", A, A)


@pytest.mark.parametrize(
    ("call", "use"),
    [
        (f"lookup{SEP}", ("lookup", {})),
        (f"function{SEP}lookup", ("lookup", {})),
        (f"function{SEP}", ("function", {})),
        (f'function{SEP}{{"q": 1}}', ("function", {"q": 1})),
        (f'unheard.of{SEP}{{"q": 1}}', ("unheard.of", {"q": 1})),
    ],
)
def test_calls_without_arguments_and_of_other_tools(call: str, use: tuple[str, dict[str, Any]]) -> None:
    assert by_tokens(section(call), "deepseek_v3") == output("", use)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (f'function{SEP}lookup\n```json\n{{"q": "a"\n```', {"q": None}),
        (f'function{SEP}lookup\n```json\n{{"q": "a"}}\n``` and more', {"q": "a"}),
        (f"function{SEP}lookup\n```json\n\n```", {}),
        (f"lookup{SEP}not json", {}),
    ],
)
def test_a_malformed_call_is_safe_and_says_so(call: str, arguments: dict[str, Any]) -> None:
    assert by_tokens(section(call, FENCED), "deepseek_v3") == output("", ("lookup", arguments), A, ill_formed=True)


@pytest.mark.parametrize("cut", ["", "lookup", f"function{SEP}", f"function{SEP}look", f"function{SEP}lookup\n```js"])
def test_cut_off_before_its_arguments_a_call_is_text(cut: str) -> None:
    assert by_tokens(f"x{BEGIN}{CALL}{cut}", "deepseek_v3") == output(f"x{BEGIN}{CALL}{cut}", ill_formed=True)


@pytest.mark.parametrize("behind", ["x" * MAX_HEAD + "x", "\n" * MAX_HEAD + "\n", "{"])
def test_what_stands_behind_the_separator_is_bounded(behind: str) -> None:
    text = f"{BEGIN}{CALL}function{SEP}{behind}"
    parsed = by_tokens(text, "deepseek_v3")
    assert parsed == output(text, ill_formed=True)


def invoke(name: str, *parameters: str) -> str:
    return "\n".join([f'<{D}invoke name="{name}">', *parameters, f"</{D}invoke>\n"])


def parameter(key: str, value: str, attribute: str) -> str:
    return f'<{D}parameter name="{key}"{attribute}>{value}</{D}parameter>'


def block(*invokes: str) -> str:
    return f"\n\n<{D}function_calls>\n{''.join(invokes)}</{D}function_calls>"


@pytest.mark.parametrize(
    ("attribute", "value", "read"),
    [
        (' string="true"', "7", "7"),
        (' string="true"', ' "a" \n', ' "a" \n'),
        (' string="false"', "7", 7),
        (' string="false"', '{"a": [null, 1.5]}', {"a": [None, 1.5]}),
        (' string="false"', '"quoted"', "quoted"),
        ("", "7", 7),
    ],
)
def test_the_markup_says_what_a_string_is(attribute: str, value: str, read: Any) -> None:
    text = f"Look.{block(invoke('lookup', parameter('n', value, attribute)))}"
    assert both_ways(text, "deepseek_v32") == output("Look.", ("lookup", {"n": read}))


def test_a_value_that_is_no_json_is_a_string_and_says_so() -> None:
    text = block(invoke("lookup", parameter("n", "seven", ' string="false"')), invoke("typed"))
    assert both_ways(text, "deepseek_v32", tools=TOOLS) == output(
        "", ("lookup", {"n": "seven"}), ("typed", {}), ill_formed=True
    )


@pytest.mark.parametrize(("before", "shown"), [("a\n\n\n", "a\n"), ("a\n", "a"), ("a\n\nb\n\n", "a\n\nb"), ("", "")])
def test_two_newlines_before_a_block_belong_to_it(before: str, shown: str) -> None:
    text = before + block(invoke("lookup")).removeprefix("\n\n")
    assert both_ways(text, "deepseek_v32") == output(shown, ("lookup", {}))


@pytest.mark.parametrize(
    "text", ["a\n\n", "a\n\n\n", f"the <{D}function_calls> tag", f"{D}", f"<{D}", f"a\n\n<{D}function_calls>\n"]
)
def test_text_without_calls_is_untouched(text: str) -> None:
    assert both_ways(text, "deepseek_v32").text == text
