"""Which parsers a chat template asks for."""

from __future__ import annotations

import json

import pytest

from adapter.parsing import ParserChoice, UnknownParser, choose_parsers
from engine.assets import demo_chat_template
from tests.support.assets import tokenizer_dir


def published_template(name: str) -> str:
    return json.loads((tokenizer_dir(name) / "tokenizer_config.json").read_text())["chat_template"]


def test_qwen2_5() -> None:
    assert choose_parsers(published_template("qwen2_5")) == ParserChoice("hermes", "none")


def test_qwen3() -> None:
    assert choose_parsers(published_template("qwen3")) == ParserChoice("hermes", "think")


def test_qwen3_coder() -> None:
    template = "{{- '<tool_call>\\n<function=' + call.name + '>\\n' }}"
    assert choose_parsers(template) == ParserChoice("xml", "none")


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
