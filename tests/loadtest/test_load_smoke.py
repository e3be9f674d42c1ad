"""The whole load test, for seconds and a few agents: it can be carried out, and nothing is lost. Times are not looked at."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from adapter.loadtest_command import complete
from engine.assets import demo_model_dir
from loadtest.system import System

# Not imported to see whether it is there: its gevent would patch the test process.
LOCUST = pytest.mark.skipif(importlib.util.find_spec("locust") is None, reason="the extra `loadtest` is not installed")


def carried_out(*arguments: str, out: Path) -> dict[str, list[str]]:
    """The words of each line of the verdict's table, by the figure's name."""
    command = [sys.executable, "-m", "loadtest", *arguments, "--scale", "0.02", "--gap-scale", "0.01"]
    command += ["--tokenizer", str(demo_model_dir()), "--out", str(out)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "verdict:" in run.stdout, run.stdout + run.stderr
    return {line[:28].strip(): line.split() for line in run.stdout.splitlines()}


@LOCUST
def test_agents_lose_nothing_and_the_report_is_written(tmp_path: Path) -> None:
    lines = carried_out("--users", "4", "--minutes", "0.1", out=tmp_path)
    assert (lines["lost turns"][2], lines["inexact turns"][2]) == ("0", "0"), lines
    assert int(lines["sessions judged"][2]) >= 4
    assert int(lines["turns judged"][2]) >= 4
    assert "<svg" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "report.svg").exists()


@LOCUST
@pytest.mark.parametrize("option", ["--url", "--triton"])
def test_agents_work_on_a_server_or_a_triton_that_runs(option: str, running_system: System, tmp_path: Path) -> None:
    where = {"--url": running_system.server.url, "--triton": running_system.triton}[option]
    lines = carried_out("--users", "2", "--minutes", "0.05", option, where, out=tmp_path)
    assert (lines["lost turns"][2], lines["inexact turns"][2]) == ("0", "0"), lines
    assert int(lines["turns judged"][2]) >= 2


def test_the_command_names_the_demo_models_tokenizer_only_where_it_is_needed() -> None:
    assert complete(["--users", "3"]) == ["--users", "3", "--tokenizer", str(demo_model_dir())]
    for arguments in (["--url", "http://h"], ["--url=http://h"], ["--tokenizer", "d"], ["--help"]):
        assert complete(arguments) == arguments
