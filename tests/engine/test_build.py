"""Building a TensorRT engine: the commands, and what happens where they are not installed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from engine.build import FAMILIES, BuildFailed, BuildPlan, build_engine


@pytest.fixture
def plan(tmp_path: Path) -> BuildPlan:
    (tmp_path / "checkpoint").mkdir()
    return BuildPlan(tmp_path / "checkpoint", tmp_path / "target", "qwen", tmp_path / "examples", tensor_parallel=2)


def options(command: list[str]) -> dict[str, str]:
    flags = [place for place, word in enumerate(command) if word.startswith("--")]
    return {command[place]: command[place + 1] for place in flags}


def test_the_engine_is_built_for_reuse_and_from_what_was_converted(plan: BuildPlan) -> None:
    convert, build = plan.commands()
    assert convert[1] == str(plan.examples / "models" / "core" / "qwen" / "convert_checkpoint.py")
    assert options(convert)["--tp_size"] == "2"
    assert options(build)["--checkpoint_dir"] == options(convert)["--output_dir"]
    assert options(build)["--use_paged_context_fmha"] == "enable"
    assert options(build)["--kv_cache_type"] == "paged"


@pytest.mark.parametrize(
    ("family", "folder"),
    [
        ("llama", "core/llama"),
        ("mixtral", "core/llama"),
        ("exaone", "core/llama"),
        ("qwen", "core/qwen"),
        ("gpt", "core/gpt"),
        ("nemotron", "core/gpt"),
        ("internlm2", "core/internlm2"),
        ("deepseek_v2", "contrib/deepseek_v2"),
    ],
)
def test_a_family_is_converted_by_the_script_that_knows_it(plan: BuildPlan, family: str, folder: str) -> None:
    convert, _ = replace(plan, family=family, pipeline_parallel=3).commands()
    assert convert[1] == str(plan.examples / "models" / folder / "convert_checkpoint.py")
    assert options(convert) == {
        "--model_dir": str(plan.checkpoint),
        "--output_dir": str(plan.converted),
        "--dtype": "bfloat16",
        "--tp_size": "2",
        "--pp_size": "3",
    }


def test_gemma_is_converted_with_its_scripts_own_flags(plan: BuildPlan) -> None:
    convert, _ = replace(plan, family="gemma").commands()
    assert convert[1] == str(plan.examples / "models" / "core" / "gemma" / "convert_checkpoint.py")
    assert options(convert) == {
        "--model_dir": str(plan.checkpoint),
        "--output_dir": str(plan.converted),
        "--dtype": "bfloat16",
        "--ckpt-type": "hf",
        "--world-size": "2",
    }


def test_every_family_was_looked_up() -> None:
    assert set(FAMILIES) == {
        *("llama", "mixtral", "exaone", "qwen", "gpt", "nemotron", "internlm2", "deepseek_v2", "gemma", "phi")
    }


@pytest.mark.parametrize("family", ["gemma", "phi"])
def test_pipeline_parallelism_is_refused_where_the_script_takes_none(plan: BuildPlan, family: str) -> None:
    with pytest.raises(BuildFailed, match=f"{family}'s conversion script takes no pipeline parallelism"):
        replace(plan, family=family, pipeline_parallel=2)


def test_a_dtype_that_not_every_script_takes_is_refused(plan: BuildPlan) -> None:
    with pytest.raises(BuildFailed, match="'auto' is none of bfloat16, float16, float32"):
        replace(plan, dtype="auto")


def test_without_tensorrt_llm_it_says_where_to_run_it(plan: BuildPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BuildFailed, match="trtllm-build is not installed here: run this in Triton's TensorRT-LLM"):
        build_engine(plan, print)


def test_an_unknown_family_is_refused(plan: BuildPlan) -> None:
    with pytest.raises(BuildFailed, match="no family 'llamas'; there are llama, qwen"):
        replace(plan, family="llamas")


def install(plan: BuildPlan, folder: Path, status: int) -> None:
    """A conversion script that works, and a trtllm-build that writes down how it was called."""
    plan.script.parent.mkdir(parents=True)
    plan.script.write_text("import sys\nprint('converting', sys.argv[1:])\n")
    folder.mkdir()
    program = folder / "trtllm-build"
    program.write_text(f'#!/bin/sh\necho "$@" > {folder}/called\nexit {status}\n')
    program.chmod(0o755)


def test_both_commands_are_run_in_order(plan: BuildPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(plan, tmp_path / "bin", 0)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    told: list[str] = []
    assert build_engine(plan, told.append) == plan.engine
    assert [line.split()[1] for line in told] == [plan.commands()[0][0], "trtllm-build"]
    assert str(plan.engine) in (tmp_path / "bin" / "called").read_text()


def test_a_command_that_fails_is_named(plan: BuildPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(plan, tmp_path / "bin", 3)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(BuildFailed, match=r"^trtllm-build .* ended with status 3"):
        build_engine(plan, print)


def test_what_is_missing_is_told_before_anything_runs(
    plan: BuildPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(plan, tmp_path / "bin", 0)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(BuildFailed, match="name the examples folder"):
        build_engine(replace(plan, examples=tmp_path / "none"), print)
    with pytest.raises(BuildFailed, match=r"the checkpoint .* is no folder"):
        build_engine(replace(plan, checkpoint=tmp_path / "none"), print)
    assert not (tmp_path / "bin" / "called").exists()
