"""What is published works without the clone: the built wheel in an empty environment, then ``rollserve up`` and one SDK call.

The scripted model stands in for the transformers one, so the environment needs no torch; Triton and the packaging are the same.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import anthropic
import pytest

from tests.support.assets import tokenizer_dir

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", out, PROJECT], check=True, capture_output=True
    )
    (built,) = out.glob("rollserve-*.whl")
    return built


def test_models_and_load_tests_travel_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in ("engine", "adapter", "model_repo", "loadtest"):
        files = {str(file.relative_to(PROJECT)) for file in (PROJECT / package).rglob("*") if file.is_file()}
        assert {file for file in files if "__pycache__" not in file} <= names
    assert not any(name.startswith("tests/") for name in names)


def test_up_from_an_empty_environment_outside_the_clone(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    binaries = tmp_path / "venv" / "bin"
    pip = [binaries / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, wheel, f"nvidia-pytriton=={version('nvidia-pytriton')}", "numpy<2"], check=True, timeout=280)
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"default": {"text": "From the wheel.", "end": True}}))
    settings = ["--engine-model", "scripted", "--engine-setting", f"script={script}", "--port", "0"]
    command = [binaries / "rollserve", "up", "--tokenizer", tokenizer_dir("qwen2_5"), *settings]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert server.stdout is not None
        url = next(m[1] for line in server.stdout if (m := re.search(r"listens on (http://\S+)", line)))
        with anthropic.Anthropic(base_url=url, api_key="k") as client:
            user = [{"role": "user", "content": "hi"}]
            reply = client.messages.create(model="rollserve", max_tokens=20, messages=user)  # type: ignore[arg-type]
        assert reply.content[0].text == "From the wheel."
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    assert server.returncode == 0
