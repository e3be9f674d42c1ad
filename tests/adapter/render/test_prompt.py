"""A tokenizer directory as it is published becomes a renderer, or an error that names the file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from adapter.errors import BadRequest
from adapter.render.prompt import Renderer, TokenizerError
from adapter.types import ScaffoldKind
from tests.adapter.render.conftest import Renderers
from tests.adapter.render.conversations import user
from tests.support.assets import demo_model_dir

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The demo model's tokenizer, without a template and without end tokens."""
    shutil.copy(demo_model_dir() / "tokenizer.json", tmp_path)
    return tmp_path


def write(folder: Path, name: str, document: Any) -> None:
    text = document if isinstance(document, str) else json.dumps(document)
    (folder / name).write_text(text, encoding="utf-8")


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json does not exist"):
        Renderer.load(tmp_path)


def test_a_folder_without_a_template(folder: Path) -> None:
    write(folder, "tokenizer_config.json", {"eos_token": "<|im_end|>"})
    with pytest.raises(TokenizerError, match="no chat template; give one with --chat-template"):
        Renderer.load(folder)
    with pytest.raises(TokenizerError, match=r"none\.jinja does not exist"):
        Renderer.load(folder, folder / "none.jinja")


def test_a_configuration_that_is_no_object(folder: Path) -> None:
    write(folder, "tokenizer_config.json", [1])
    with pytest.raises(TokenizerError, match="is not a JSON object"):
        Renderer.load(folder)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("tokenizer.json", b"{", "cannot read the tokenizer .*tokenizer.json: "),
        ("tokenizer_config.json", b"{", "tokenizer_config.json is not JSON: "),
        ("chat_template.jinja", b"\xff\xfe", "the chat template .* is not text: "),
        ("chat_template.jinja", b"\n{% for %}", "the chat template of .* has a mistake in line 2: Expected an expr"),
        ("tokenizer_config.json", b'{"chat_template": ["default"]}', "no chat template; give one with"),
    ],
)
def test_a_damaged_file_is_named(folder: Path, name: str, content: bytes, reason: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=reason):
        Renderer.load(folder, end_tokens=["<|im_end|>"])


def test_end_tokens_are_those_of_both_files_once(folder: Path) -> None:
    write(folder, "tokenizer_config.json", {"eos_token": {"content": "<|im_end|>"}, "chat_template": CHATML})
    write(folder, "generation_config.json", {"eos_token_id": [0, 2]})
    assert Renderer.load(folder).end_ids == (2, 0)
    write(folder, "generation_config.json", {"eos_token_id": 0})
    assert Renderer.load(folder).end_ids == (2, 0)
    assert Renderer.load(folder, end_tokens=["<|im_start|>"]).end_ids == (1,)


def test_no_end_token_at_all(folder: Path) -> None:
    write(folder, "chat_template.jinja", CHATML)
    with pytest.raises(TokenizerError, match="names no end token"):
        Renderer.load(folder)
    with pytest.raises(TokenizerError, match="has no token '<nope>'"):
        Renderer.load(folder, end_tokens=["<nope>"])


def test_of_several_templates_the_default_counts(folder: Path) -> None:
    templates = [{"name": "tool_use", "template": "other"}, {"name": "default", "template": CHATML}]
    write(folder, "tokenizer_config.json", {"eos_token": "<|im_end|>", "chat_template": templates})
    assert Renderer.load(folder).template.source == CHATML
    write(folder, "chat_template.jinja", "{{ 'file' }}")
    assert Renderer.load(folder).template.source == "{{ 'file' }}"


def test_the_generation_prompt_is_scaffold(renderers: Renderers) -> None:
    renderer = renderers("qwen3")
    prompt = renderer.prompt([user("Hi")], (), {"enable_thinking": False})
    (span,) = prompt.scaffold
    assert (span.kind, span.end) == (ScaffoldKind.GENERATION_PROMPT, prompt.ids.size)
    opener = renderer.tokenizer.decode(prompt.ids[span.start :].tolist(), skip_special_tokens=False)
    assert opener == "<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.mark.parametrize("variable", ["x" * 2000, object(), [[]]])
def test_variables_that_are_not_remembered_change_nothing(renderers: Renderers, variable: Any) -> None:
    renderer = renderers("qwen3")
    prompt = renderer.prompt([user("Hi")], (), {"enable_thinking": False, "variable": variable})
    assert prompt.ids.tolist() == renderer.prompt([user("Hi")], (), {"enable_thinking": False}).ids.tolist()
    can_be_told = type(variable) is not object
    assert len(prompt.scaffold) == can_be_told


def test_a_template_without_a_generation_prompt_has_no_scaffold(folder: Path) -> None:
    write(folder, "chat_template.jinja", CHATML)
    assert Renderer.load(folder, end_tokens=["<|im_end|>"]).prompt([user("Hi")], (), {}).scaffold == ()


def test_a_generation_prompt_that_depends_on_the_messages_is_not_guessed(folder: Path) -> None:
    opener = "{% if add_generation_prompt %}<|im_start|>{{ 'answer' if messages[-1].role == 'tool' else 'reply' }}\n{% endif %}"
    write(folder, "chat_template.jinja", CHATML + opener)
    renderer = Renderer.load(folder, end_tokens=["<|im_end|>"])
    assert len(renderer.prompt([user("Hi")], (), {}).scaffold) == 1
    assert renderer.prompt([user("Hi"), {"role": "tool", "content": "x"}], (), {}).scaffold == ()


def test_arguments_nested_too_deeply_are_refused(renderers: Renderers) -> None:
    deep: Any = "<|im_end|>"
    for _ in range(100_000):
        deep = [deep]
    call = {"type": "function", "function": {"name": "x", "arguments": {"x": deep}}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    with pytest.raises(BadRequest, match="nested too deeply"):
        renderers("qwen3").prompt([user("Hi"), message], (), {})


def test_a_tokenizer_that_is_encoded_whole_is_warned_of(folder: Path) -> None:
    document = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    document["normalizer"] = {"type": "Replace", "pattern": {"String": "user"}, "content": "<|im_start|>"}
    for token in document["added_tokens"]:
        token["normalized"] = True
    write(folder, "tokenizer.json", document)
    write(folder, "chat_template.jinja", CHATML)
    warnings = Renderer.load(folder, end_tokens=["<|im_end|>"]).warnings
    assert "text from users can become control tokens" in warnings[0]
