"""Chat templates are rendered as ``apply_chat_template`` renders them, and their refusals are the client's errors."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from adapter.errors import BadRequest
from adapter.render.template import ChatTemplate
from tests.adapter.render.conversations import user


def render(source: str, **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render([user("你好 <b> & \"'")], (), options)


def test_json_keeps_every_character() -> None:
    assert render("{{ messages[0].content | tojson }}") == '"你好 <b> & \\"\'"'
    assert render("{{ {'b': 1, 'a': [1, 2.5]} | tojson(indent=1, sort_keys=True) }}") == (
        '{\n "a": [\n  1,\n  2.5\n ],\n "b": 1\n}'
    )


def test_blocks_are_trimmed_and_loops_have_controls() -> None:
    source = "{% for n in range(9) %}\n  {% if n == 2 %}\n    {% break %}\n  {% endif %}\n{{ n }}\n{% endfor %}"
    assert render(source) == "0\n1\n"


def test_special_tokens_and_variables() -> None:
    assert render("{{ bos_token }}{{ mood }}", mood="glad", bos_token="other", messages="other") == "<s>glad"


def test_the_date_is_asked_for() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime.datetime(2026, 1, 2))
    assert template.render([], (), {}) == "02 Jan 2026"


def test_generation_blocks_render_their_content() -> None:
    assert render("{% generation %}{{ messages[0].role }}{% endgeneration %}") == "user"


def test_the_generation_prompt_can_be_left_out() -> None:
    template = ChatTemplate("{{ add_generation_prompt }} {{ tools is none }}")
    assert template.render([], (), {}) == "True True"
    assert template.render([], [{"a": 1}], {}, add_generation_prompt=False) == "False False"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('not like this') }}",
        "{{ messages[0].content + 1 }}",
        "{{ nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{{ {}['x']['y'] }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_refusal_names_the_messages(source: str) -> None:
    with pytest.raises(BadRequest, match="refuses this conversation") as caught:
        render(source)
    assert caught.value.field == "messages"


def test_a_value_nested_too_deeply_is_refused() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(BadRequest, match="nested too deeply"):
        render("{{ deep | tojson }}", deep=deep)


def test_only_options_that_the_template_names_can_matter() -> None:
    template = ChatTemplate("{% if thinking is defined and thinking %}<think>{% endif %}{% set own = 1 %}{{ own }}")
    options = {"thinking": False, "own": 2, "style": "x"}
    assert template.read_options(options) == {"thinking": False}
    assert [template.reads(name) for name in options] == [True, False, False]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"enable_thinking": True}, "on"),
        ({"enable_thinking": False}, "off"),
        ({"enable_thinking": True, "thinking": False}, "off"),
        ({}, "off"),
    ],
)
def test_thinking_has_another_name_in_some_templates(options: dict[str, Any], shown: str) -> None:
    source = "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{{ 'on' if thinking else 'off' }}"
    template = ChatTemplate(source)
    assert template.render([], (), options) == shown
    assert template.reads("enable_thinking")


def test_a_template_with_the_usual_name_is_given_no_other() -> None:
    template = ChatTemplate("{{ enable_thinking }} {{ thinking is defined }}")
    assert template.render([], (), {"enable_thinking": False}) == "False False"
