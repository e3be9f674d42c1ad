"""The whole load test, for seconds and a few agents: it can be carried out, and nothing is lost. Times are not looked at."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from adapter.loadtest_command import complete
from engine.assets import demo_model_dir


# Not imported to see whether it is there: its gevent would patch the test process.
@pytest.mark.skipif(importlib.util.find_spec("locust") is None, reason="the extra `loadtest` is not installed")
def test_agents_lose_nothing_and_the_report_is_written(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadtest", "--users", "4", "--minutes", "0.1", "--scale", "0.02"]
    command += ["--gap-scale", "0.01", "--tokenizer", str(demo_model_dir()), "--out", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = {line[:28].strip(): line.split() for line in run.stdout.splitlines()}
    assert lines["lost turns"][2] == "0", run.stdout + run.stderr
    assert lines["inexact turns"][2] == "0", run.stdout
    assert int(lines["sessions judged"][2]) >= 4, run.stdout
    assert int(lines["turns judged"][2]) >= 4, run.stdout
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_the_command_names_the_demo_models_tokenizer_only_where_it_is_needed() -> None:
    assert complete(["--users", "3"]) == ["--users", "3", "--tokenizer", str(demo_model_dir())]
    for arguments in (["--url", "http://h"], ["--url=http://h"], ["--tokenizer", "d"], ["--help"]):
        assert complete(arguments) == arguments
