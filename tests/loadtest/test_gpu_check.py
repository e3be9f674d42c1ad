"""The check of a GPU, rehearsed: a tiny model on whatever is here, over a real tritonserver. Times are not looked at."""

from __future__ import annotations

from pathlib import Path

import orjson

from loadtest import gpu_check
from loadtest.gpu_check import Run, judge_run
from loadtest.gpu_sessions import Held
from loadtest.judge import Seen


def test_a_tiny_model_is_exact(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    status = gpu_check.main(["--quick", "--json", str(file), "--store", str(tmp_path / "store")])
    found = {figure["name"]: figure["value"] for figure in orjson.loads(file.read_bytes())["figures"]}
    assert status == 0, found
    assert (found["turns"], found["lost turns"], found["inexact turns"], found["failed requests"]) == (8, 0, 0, 0)
    assert found["scored tokens"] > 0


def test_a_session_without_its_export_has_lost_its_turns(tmp_path: Path) -> None:
    log = tmp_path / "engine.jsonl"
    log.write_bytes(b"")
    found = judge_run(Run([Held("s", [Seen(1, None), Seen(2, 1)])], 1.0, 0.1, None), log)
    assert (found.sessions, found.lost) == (1, 2)
