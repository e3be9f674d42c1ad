"""The ``rollserve`` command as a person uses it: real processes, real exit statuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import openai
import pytest

from tests.support.assets import tokenizer_dir
from tests.support.triton import running_triton

COMMAND = Path(sys.executable).with_name("rollserve")
SCRIPT = {"default": {"text": "Hello.", "end": True}}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **environment}
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, env=environ, timeout=120, check=False)


@contextmanager
def running(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """``rollserve ARGUMENTS`` until it listens; gives its URL. It is told to stop and must then end by itself."""
    process = subprocess.Popen([COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield next(m[1] for line in process.stdout if (m := re.search(r"listens on (http://\S+)", line))), process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


@pytest.fixture
def scripted(tmp_path: Path) -> list[str]:
    script = tmp_path / "script.json"
    script.write_text(json.dumps(SCRIPT))
    tokenizer = str(tokenizer_dir("qwen2_5"))
    return [
        "--engine-model",
        "scripted",
        "--tokenizer",
        tokenizer,
        "--engine-setting",
        f"script={script}",
        "--port",
        "0",
    ]


def test_up_serves_a_session_that_can_be_listed_shown_and_exported(scripted: list[str], tmp_path: Path) -> None:
    with running("up", *scripted, "--log-format", "json") as (url, process):
        request = urllib.request.Request(f"{url}/v1/sessions", data=b'{"sid": "cli"}', method="POST")
        with urllib.request.urlopen(request) as response:
            base_url = json.load(response)["openai_base_url"]
        with openai.OpenAI(base_url=base_url, api_key="k") as client:
            reply = client.chat.completions.create(model="rollserve", messages=[{"role": "user", "content": "hi"}])
        assert reply.choices[0].message.content == "Hello."
        assert "cli" in run("sessions", "--url", url).stdout
        assert "turn 1" in run("sessions", "--url", url, "cli").stdout
        assert json.loads(run("sessions", "--url", url, "cli", "--json").stdout)["turn_count"] == 1
        assert "policy keep" in run("explain", "--url", url, "cli").stdout
        (explained,) = json.loads(run("explain", "--url", url, "cli", "--json").stdout)["turns"]
        assert explained["reason"] == "new"
        out = tmp_path / "out" / "samples.jsonl"
        arguments = (
            "export",
            "cli",
            "--url",
            url,
            "--reward",
            "0.5",
            "--body",
            '{"metadata": {"task": 3}}',
            "--out",
            str(out),
        )
        exported = run(*arguments)
        assert exported.returncode == 0, exported.stderr
        (sample,) = [json.loads(line) for line in out.read_text().splitlines()]
        assert (sample["reward"], sample["metadata"]["task"]) == (0.5, 3)
        assert json.loads(run(*arguments[:-2]).stdout) == sample
        unknown = run("export", "nobody", "--url", url)
        assert unknown.returncode == 1
        assert "no session 'nobody'" in unknown.stderr
    assert process.returncode == 0


async def test_serve_and_check_engine_with_a_triton_that_runs_already(tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text(json.dumps(SCRIPT))
    tokenizer = str(tokenizer_dir("qwen2_5"))
    parameters = {"script": str(tmp_path / "script.json"), "tokenizer_dir": tokenizer}
    async with running_triton("scripted", tmp_path, parameters) as triton:
        address = triton.grpc_address
        checked = run("check-engine", "--triton", address, "--json")
        assert json.loads(checked.stdout)["log_prob_mode"] == "raw"
        assert json.loads(checked.stdout)["loras"] == []
        assert "fit to be served from" in run("check-engine", "--triton", address).stdout
        with running("serve", "--triton", address, "--tokenizer", tokenizer, "--port", "0") as (url, process):
            async with aiohttp.ClientSession(url) as http, http.get("/readyz") as response:
                assert (await response.json())["status"] == "ready"
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve"], "--triton HOST:PORT is needed"),
        (["serve", "--triton", "127.0.0.1:1", "--connect-timeout-s", "0.2", "--model-dir", "."], "tokenizer.json"),
        (["check-engine", "--triton", "127.0.0.1:1"], "no Triton server answers"),
        (["up", "--engine-model", "psychic"], "engine_model"),
        (["up", "--top-p", "2"], "top_p"),
        (["up", "--tool-parser", "magic"], "magic"),
        (["up", "--triton", "127.0.0.1:1", "--engine-log", "x", "--model-dir", "."], "engine_log"),
        (["up", "--triton", "127.0.0.1:1", "--engine-model", "scripted", "--model-dir", "."], "engine_model"),
        (["export", "x", "--url", "http://127.0.0.1:1"], "rollserve up"),
        (["export", "x", "--body", "["], "--body"),
        (["sessions", "--url", "http://127.0.0.1:1"], "rollserve up"),
    ],
    ids=str,
)
def test_mistakes_are_told_in_one_line_without_a_traceback(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.returncode in (1, 2)
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_settings_come_from_the_environment_and_a_file(tmp_path: Path) -> None:
    assert "unknown setting 'shoe_size' in the environment" in run("up", ROLLSERVE_SHOE_SIZE="44").stderr
    file = tmp_path / "rollserve.toml"
    file.write_text("shoe_size = 44\n")
    assert f"unknown setting 'shoe_size' in {file}" in run("up", "--config", str(file)).stderr
    file.write_text("port = 'http'\n")
    assert "port = 'http'" in run("up", "--config", str(file)).stderr


def test_every_command_has_help() -> None:
    commands = re.findall(r"^  ([a-z-]+) {2,}", run("--help").stdout.partition("Commands:")[2], re.MULTILINE)
    assert set(commands) == {
        *(
            "up",
            "serve",
            "demo",
            "sessions",
            "explain",
            "export",
            "verify",
            "journal",
            "engine",
            "check-engine",
            "top",
            "loadtest",
            "doctor",
        ),
    }
    for command in commands:
        result = run(command, "--help")
        assert result.returncode == 0
        assert len(result.stdout) > 100
