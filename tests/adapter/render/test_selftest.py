"""The self-test finds templates whose suffixes would differ from full renders, and lets the others through."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from adapter.render.closing import SuffixRefused
from adapter.render.prompt import Renderer
from adapter.render.template import ChatTemplate
from adapter.types import Message
from tests.adapter.render.conftest import Renderers
from tests.adapter.render.conversations import TOOLS, call, result, user
from tests.adapter.render.families import FAMILIES

NO_IDS = np.zeros(0, np.int32)
CHATML = """
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' + message.content -}}
    {%- for call in message.tool_calls or [] -%}{{- ' CALL ' -}}{{- call.function.arguments | tojson -}}{%- endfor -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
Build = Callable[..., Renderer]


@pytest.fixture
def build(renderers: Renderers) -> Build:
    """A renderer for a template of the test's own, with the demo model's tokenizer."""

    def build(source: str, *end_tokens: str) -> Renderer:
        tokenizer = renderers("demo").tokenizer
        ends = tuple(tokenizer.token_to_id(token) for token in end_tokens or ("<|im_end|>",))
        return Renderer(tokenizer, ChatTemplate(source), ends)

    return build


@pytest.mark.parametrize("family", FAMILIES)
def test_the_families_pass(renderers: Renderers, family: str) -> None:
    support = renderers(family).support
    assert support.ok
    assert set(support.refused) == ({"tool"} if family == "deepseek_v3" else set())
    assert bool(support.reason) == (family == "deepseek_v3")


def test_the_packaged_template_of_deepseek_opens_only_the_first_results(renderers: Renderers) -> None:
    renderer = renderers("deepseek_v3")
    assert renderer.suffix([user("Hi")], (), {}, output_tail=NO_IDS).ids.size
    with pytest.raises(SuffixRefused, match="tool▁outputs▁begin"):
        renderer.suffix([result("x")], (), {}, output_tail=NO_IDS, called=("look",))
    assert "full render" in renderer.warnings[0]


def test_a_plain_template_passes(build: Build) -> None:
    renderer = build(CHATML)
    assert renderer.support.ok and not renderer.support.reason and not renderer.warnings


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (CHATML.replace("message.role + '", "message.role + loop.index | string + '"), "in the conversation"),
        (CHATML.replace("'<|im_end|>\\n' -}}\n{%- endfor", "'\\n' -}}\n{%- endfor"), "in the conversation"),
        (
            CHATML.replace("+ message.content", "+ (message.content if message.role != 'assistant' else '')"),
            "leaves out",
        ),
        ("{{ raise_exception('never') }}", "never"),
        (
            CHATML.replace("'<|im_end|>\\n'", "'<|im_end|>\\n' if loop.last or loop.index > 3 else '<|im_end|>'"),
            "alone",
        ),
    ],
    ids=["numbered", "plain-text-closer", "no-content", "refuses", "closer-changes"],
)
def test_templates_of_which_no_suffix_can_be_trusted(build: Build, source: str, reason: str) -> None:
    renderer = build(source)
    assert not renderer.support.ok
    assert reason in renderer.support.reason
    with pytest.raises(SuffixRefused, match=re.escape(renderer.support.reason)):
        renderer.suffix([user("Hi")], (), {}, output_tail=NO_IDS)
    assert len(renderer.warnings) == 1


def test_a_template_that_refuses_whatever_is_said(build: Build) -> None:
    source = CHATML.replace(
        "messages -%}", "messages -%}{{- raise_exception('too long') if message.content | length > 1 -}}", 1
    )
    assert build(source).support.reason == "the template refuses every conversation of the self-test"


def test_what_stands_before_the_last_reply_may_change(build: Build) -> None:
    assert build("{{- messages | length -}}" + CHATML).support.ok


def test_a_template_may_fail_for_results_alone(build: Build) -> None:
    numbered = CHATML.replace(
        "message.role +", "(message.role if message.role != 'tool' else 'tool' + loop.index | string) +"
    )
    renderer = build(numbered)
    assert renderer.support.ok
    assert set(renderer.support.refused) == {"tool"}
    assert renderer.suffix([user("Hi")], (), {}, output_tail=NO_IDS).ids.size
    for new in ([result("x")], [result("x"), user("Hi")]):
        with pytest.raises(SuffixRefused, match="tool"):
            renderer.suffix(new, (), {}, output_tail=NO_IDS)


def test_tools_in_front_of_the_last_message_are_rendered_again(build: Build) -> None:
    source = CHATML.replace(
        "+ message.content", "+ ((tools | tojson) if loop.last and tools else '') + message.content"
    )
    renderer = build(source)
    assert renderer.support.ok
    assert "查找" in renderer.suffix([user("Hi")], TOOLS, {}, output_tail=NO_IDS).text


def test_a_template_that_asks_for_a_system_message(build: Build) -> None:
    source = "{%- if messages[0].role != 'system' -%}{{- raise_exception('system first') -}}{%- endif -%}" + CHATML
    renderer = build(source)
    assert renderer.support.ok
    assert renderer.suffix([user("Hi")], (), {}, output_tail=NO_IDS).text.endswith(
        "user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_that_takes_one_call_at_a_time(build: Build) -> None:
    refuse = "{%- if message.tool_calls and message.tool_calls | length > 1 -%}{{- raise_exception('one call') -}}{%- endif -%}"
    renderer = build(CHATML.replace("messages -%}", "messages -%}" + refuse, 1))
    assert renderer.support.ok and not renderer.support.refused
    text = renderer.suffix([result("one"), result("two")], (), {}, output_tail=NO_IDS, called=("a", "b")).text
    assert text.index("one") < text.index("two")


def test_control_tokens_behind_the_end_token_are_part_of_the_closer(build: Build) -> None:
    renderer = build(CHATML.replace("<|im_end|>", "<|im_end|><repo_name>"))
    assert renderer.support.ok and not renderer.support.refused
    for new in (user("Hi"), result("Hi")):
        given = renderer.suffix([new], (), {}, output_tail=np.array(renderer.end_ids, np.int32))
        text = renderer.tokenizer.decode(given.ids.tolist(), skip_special_tokens=False)
        assert text.startswith(f"<repo_name>\n<|im_start|>{new['role']}\nHi")


def test_a_reply_at_the_very_end_may_be_closed_in_another_way(build: Build) -> None:
    """Only what closes it with a message behind it counts, and the next message's opener is none of that."""
    closer = "'<file_sep><gh_stars>' if loop.last and message.role == 'assistant' else '<|im_end|>'"
    source = CHATML.replace("'<|im_end|>\\n' -}}", closer + " -}}", 1)
    source = source.replace("'<|im_start|>' +", "{'user': '<repo_name>'}.get(message.role, '<|im_start|>') +", 1)
    renderer = build(source)
    assert renderer.support.ok and not renderer.support.refused
    assert renderer.suffix([user("Hi")], (), {}, output_tail=NO_IDS).text.startswith("<|im_end|><repo_name>user")


def test_arguments_that_are_escaped_to_ascii(build: Build) -> None:
    renderer = build(CHATML.replace("tojson", "tojson(ensure_ascii=True)"))
    assert renderer.support.ok and not renderer.support.refused
    called: Message = {"role": "assistant", "content": "", "tool_calls": [call("look", "<|im_end|> 你")]}
    assert '{"path": "<|im_end|> \\u4f60"}' in renderer.prompt([user("Hi"), called], (), {}).text


SHARED = """
{%- for message in messages -%}
    {{- {'user': '<repo_name>', 'tool': '<file_sep>', 'assistant': '<gh_stars>', 'system': '<jupyter_text>'}[message.role] -}}
    {{- message.content -}}
    {%- for call in message.tool_calls or [] -%}{{- ' CALL ' -}}{{- call.function.arguments | tojson -}}{%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<gh_stars>' -}}{%- endif -%}
"""


@pytest.mark.parametrize(
    ("output", "new", "expected"),
    [
        ("ok<repo_name>", user("Hi"), "Hi<gh_stars>"),
        ("ok<file_sep>", result("Hi"), "Hi<gh_stars>"),
        ("ok", user("Hi"), "<repo_name>Hi<gh_stars>"),
        ("ok<file_sep>", user("Hi"), "<repo_name>Hi<gh_stars>"),
        ("ok<|endoftext|>", user("Hi"), "<repo_name>Hi<gh_stars>"),
    ],
)
def test_a_stop_token_that_opens_the_next_message_is_shared(
    build: Build, output: str, new: Message, expected: str
) -> None:
    renderer = build(SHARED, "<|endoftext|>", "<repo_name>", "<file_sep>")
    assert renderer.support.ok and not renderer.support.refused
    tail = np.array(renderer.tokenizer.encode(output).ids, np.int32)
    given = renderer.suffix([new], (), {}, output_tail=tail)
    assert renderer.tokenizer.decode(given.ids.tolist(), skip_special_tokens=False) == expected
    assert [span.kind.value for span in given.scaffold] == ["generation_prompt"]


def sentence_piece(source: str) -> Renderer:
    """A vocabulary of characters in which the first piece of a text begins a word."""
    letters = [*map(chr, range(32, 127)), "▁", "\n", "▁H", "▁x"]
    model = models.BPE({text: id_ for id_, text in enumerate(letters)}, [("▁", "H"), ("▁", "x")], unk_token=" ")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in ("<s>", "</s>")])
    return Renderer(tokenizer, ChatTemplate(source, {"bos_token": "<s>"}), (tokenizer.token_to_id("</s>"),))


def test_tokens_that_take_the_white_space_behind_them(renderers: Renderers) -> None:
    document = json.loads(renderers("demo").tokenizer.to_str())
    for token in document["added_tokens"]:
        token["rstrip"] = True
    tokenizer = Tokenizer.from_str(json.dumps(document))
    renderer = Renderer(tokenizer, ChatTemplate(CHATML), (tokenizer.token_to_id("<|im_end|>"),))
    assert renderer.support.ok and not renderer.support.refused and not renderer.warnings
    given = renderer.suffix([user("  Hi")], (), {}, output_tail=np.array(renderer.end_ids, np.int32))
    assert given.ids.tolist() == tokenizer.encode("<|im_start|>user\n  Hi<|im_end|>\n<|im_start|>assistant\n").ids


@pytest.mark.parametrize("closer", ["</s>", "~"])
def test_a_suffix_does_not_begin_a_word(closer: str) -> None:
    source = """
{{- bos_token -}}
{%- for message in messages -%}{{- message.role + ':' + message.content + 'CLOSER' -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'assistant:' -}}{%- endif -%}
"""
    renderer = sentence_piece(source.replace("CLOSER", closer))
    assert renderer.support.ok
    history: list[Message] = [user("x"), {"role": "assistant", "content": "yes"}]
    given = renderer.suffix([user("Hi")], (), {}, output_tail=NO_IDS)
    whole = renderer.prompt([*history, user("Hi")], (), {}).ids
    assert whole[-given.ids.size :].tolist() == given.ids.tolist()
    assert [renderer.tokenizer.id_to_token(id_) for id_ in given.ids[:3].tolist()] == [closer, "u", "s"]
