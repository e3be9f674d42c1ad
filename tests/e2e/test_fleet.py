"""``rollserve engine``: servers on this host, model repositories, engines. The compose file is read, not run."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from engine.probe import probe
from tests.support.assets import tokenizer_dir

COMMAND = [str(Path(sys.executable).with_name("rollserve")), "engine"]
COMPOSE = Path(__file__).parents[2] / "model_repo" / "deploy" / "compose.yaml"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)


async def test_replicas_come_up_are_named_in_a_file_and_go(tmp_path: Path) -> None:
    script, endpoints = tmp_path / "script.json", tmp_path / "endpoints"
    script.write_text(json.dumps({"default": {"ids": list(range(32))}}))
    settings = [f"script={script}", f"tokenizer_dir={tokenizer_dir('qwen2_5')}"]
    command = [*COMMAND, "up", "--engine-model", "scripted", "--replicas", "2", "--port", "0"]
    command += ["--endpoints", str(endpoints), "--run-dir", str(tmp_path / "run")]
    command += [word for setting in settings for word in ("--set", setting)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220 (the probe waits for it)
        assert process.stdout is not None
        try:
            told = [next(process.stdout) for _ in range(5)]
            addresses = endpoints.read_text().split()
            assert sorted(re.findall(r"ready on (\S+)", "".join(told))) == sorted(addresses)
            assert f"rollserve serve --triton-file {endpoints}" in told[-1]
            assert len({(await probe(address)).vocab_size for address in addresses}) == 1
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def test_a_replica_that_cannot_start_says_why_and_nothing_is_left(tmp_path: Path) -> None:
    failed = run("up", "--engine-model", "scripted", "--replicas", "2", "--port", "0", "--set", "script=/none.json")
    assert failed.returncode == 1
    assert "/none.json: No such file" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_a_repository_is_written_for_any_model(tmp_path: Path) -> None:
    done = run("render", "scripted", str(tmp_path / "a"), "--set", "script=/s.json", "--weight-version", "4")
    assert f"--model-repository={tmp_path / 'a'}" in done.stdout
    assert '"4"' in (tmp_path / "a" / "tensorrt_llm" / "config.pbtxt").read_text()
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "config.json").write_text(
        json.dumps({"pretrained_config": {"vocab_size": 9}, "build_config": {"max_seq_len": 9, "max_batch_size": 1}})
    )
    options = ["--engine-dir", str(tmp_path / "engine")]
    assert run("render", "tensorrt_llm_engine", str(tmp_path / "b"), *options).returncode == 0
    assert "tensorrtllm" in (tmp_path / "b" / "tensorrt_llm" / "config.pbtxt").read_text()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("render", "scripted", "/tmp/x", "--set", "scrip=/s.json"), "no parameter scrip; it has"),
        (("render", "gpt", "/tmp/x"), "no model 'gpt'; there are scripted"),
        (("render", "tensorrt_llm_engine", "/tmp/x"), "needs --engine-dir"),
        (
            ("render", "tensorrt_llm_engine", "/tmp/x", "--engine-dir", "/none"),
            "is /none a folder that trtllm-build wrote",
        ),
        (("render", "scripted", "/tmp/x", "--engine-dir", "/e"), "--engine-dir is for tensorrt_llm_engine"),
        (("render", "scripted", "/tmp/x", "--weight-version", "2147483648"), "is not in the range 0<=x<=2147483647"),
        (("up", "--port", "65536"), "is not in the range 0<=x<=65535"),
        (("up", "--engine-model", "scripted", "--set", "script=/s", "--port", "65535"), "need the ports up to 65537"),
        (("up", "--set", "x"), "it takes NAME=VALUE"),
        (("up", "--engine-model", "tensorrt_llm_engine"), "needs --model"),
        (("build", "--family", "qwen", "/none", "/tmp/x"), "trtllm-build is not installed here"),
    ],
)
def test_mistakes_are_told_in_a_line(arguments: tuple[str, ...], reason: str) -> None:
    failed = run(*arguments)
    assert failed.returncode != 0
    assert reason in failed.stderr
    assert "Traceback" not in failed.stderr


def test_the_commands_of_a_build_are_shown() -> None:
    shown = run(
        "build", "--family", "llama", "--tp", "2", "--show", "/models/llama", "/engines/llama"
    ).stdout.splitlines()
    assert "llama/convert_checkpoint.py --model_dir /models/llama" in shown[0]
    assert shown[1].startswith("trtllm-build --checkpoint_dir /engines/llama/checkpoint")


def test_the_compose_file_runs_commands_that_there_are() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    assert set(services) == {"engines", "server"}
    for service in services.values():
        line = service["command"][-1].partition("exec rollserve ")[2]
        words = line.replace("$$", "").split()
        command = words[: 2 if words[0] == "engine" else 1]
        helped = subprocess.run([COMMAND[0], *command, "--help"], capture_output=True, text=True, check=True).stdout
        unknown = [word for word in words if word.startswith("--") and word not in helped]
        assert not unknown
