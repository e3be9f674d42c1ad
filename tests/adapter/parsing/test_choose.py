"""Which parsers a chat template asks for."""

from __future__ import annotations

import json

import pytest

from adapter.parsing import ParserChoice, UnknownParser, choose_parsers
from engine.assets import demo_chat_template
from tests.support.assets import template_file, tokenizer_dir


def published_template(name: str) -> str:
    return json.loads((tokenizer_dir(name) / "tokenizer_config.json").read_text())["chat_template"]


PUBLISHED = {
    "qwen2_5": ("hermes", "none"),
    "qwen3": ("hermes", "think"),
    "deepseek_v3": ("deepseek_v3", "none"),
    "llama3_1": ("llama", "none", False),
    "llama3_2": ("llama", "none"),
    "gemma3": ("gemma3", "none", False),
    "mistral_nemo": ("mistral", "none"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_templates(name: str) -> None:
    assert choose_parsers(published_template(name)) == ParserChoice(*PUBLISHED[name])


OWN = {"deepseek_v3_tools": ("deepseek_v3", "none"), "gptoss": ("gpt_oss", "none")}


@pytest.mark.parametrize("name", OWN)
def test_templates_of_our_own(name: str) -> None:
    assert choose_parsers(template_file(name).read_text()) == ParserChoice(*OWN[name])


@pytest.mark.parametrize(
    ("written", "choice"),
    [
        ("'<tool_call>\\n<function=' + call.name + '>\\n'", ("xml", "none")),
        ("'<think>' + '</think>' + '<tool_call>\\n<function='", ("xml", "think")),
        ("'<tool_call>' + tc.name + '<arg_key>' + k + '</arg_key>' + '<think>'", ("glm45", "think")),
        ("'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + '</think>'", ("deepseek_v3", "think")),
        ("'｜DSML｜' + '<｜Assistant｜>' + '<think>'", ("deepseek_v32", "think")),
        ("'<|tool_calls_section_begin|>' + '<think>'", ("kimi_k2", "think")),
        ("'<minimax:tool_call>' + '<invoke name=' + '<think>'", ("minimax_m2", "think")),
        ("'[TOOL_CALLS]' + '[THINK]'", ("mistral", "mistral")),
        ("'<|tool_call>call:' + name", ("gemma4", "none")),
        ("'<start_of_turn>model\\n' + '<start_function_call>call:'", ("function_gemma", "none")),
        ("'<|im_middle|>' if message.tool_calls", ("kimi_k2", "none")),
        ("'<|im_middle|>'", ("kimi_k2", "none", False)),
        ("'<|header_start|>' if message.tool_calls", ("llama", "none")),
    ],
)
def test_what_templates_of_other_families_write(written: str, choice: tuple[str, str]) -> None:
    assert choose_parsers(f"{{{{- {written} }}}}") == ParserChoice(*choice)


@pytest.mark.parametrize("template", ["", "{{ messages[0].content }}"])
def test_a_template_without_known_formats(template: str) -> None:
    assert choose_parsers(template) == ParserChoice("xml", "none", tool_format_known=False)
    assert choose_parsers(template, "xml") == ParserChoice("xml", "none")


def test_what_is_named_wins_over_the_template() -> None:
    assert choose_parsers(published_template("qwen3"), "none", "none") == ParserChoice("none", "none")
    assert choose_parsers("", "hermes", "think") == ParserChoice("hermes", "think")


def test_the_demo_model_has_a_choice() -> None:
    assert choose_parsers(demo_chat_template()).reasoning_parser == "none"


@pytest.mark.parametrize(("tool_parser", "reasoning_parser"), [("hermse", "auto"), ("auto", "thunk"), ("", "auto")])
def test_an_unknown_name_is_refused_with_the_known_ones(tool_parser: str, reasoning_parser: str) -> None:
    with pytest.raises(UnknownParser, match=r"unknown (tool|reasoning) parser .*; there are: none, ") as caught:
        choose_parsers("", tool_parser, reasoning_parser)
    assert isinstance(caught.value, ValueError)
