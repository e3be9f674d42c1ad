"""The check of a GPU, rehearsed: a tiny model on whatever is here, over a real tritonserver. Times are not looked at."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import orjson
import pytest

from engine.differences import Breakdown
from engine.differences import Measured as Differing
from engine.verify_report import NOT_CAUGHT, Control, VerifyReport
from loadtest import gpu_check
from loadtest.figures import Measured
from loadtest.gpu_check import Run, figures, judge_run
from loadtest.gpu_sessions import Held
from loadtest.judge import Findings, Seen
from loadtest.program import Options
from loadtest.recording import TurnRecord


def test_a_tiny_model_is_exact(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    status = gpu_check.main(["--quick", "--json", str(file), "--store", str(tmp_path / "store")])
    found = {figure["name"]: figure["value"] for figure in orjson.loads(file.read_bytes())["figures"]}
    assert status == 0, found
    assert (found["turns"], found["lost turns"], found["inexact turns"], found["failed requests"]) == (8, 0, 0, 0)
    assert found["scored tokens"] > 0


def test_it_needs_no_package_of_the_load_test() -> None:
    """A GPU host without a network has neither; every wheel more would have to be brought."""
    code = "import sys; sys.modules |= dict.fromkeys(['psutil', 'locust']); import loadtest.gpu_check"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_session_without_its_export_has_lost_its_turns(tmp_path: Path) -> None:
    log = tmp_path / "engine.jsonl"
    log.write_bytes(b"")
    found = judge_run(Run([Held("s", [Seen(1, None, ""), Seen(2, 1, "")])], 1.0, 0.1, None), log)
    assert (found.sessions, found.lost) == (1, 2)


UNCAUGHT = f"{NOT_CAUGHT}: one log prob off by 0.01"
UNREADABLE = "sample 3: loss_mask has 7 entries, there are 8 tokens"


def report(tolerance: float, *failures: str) -> VerifyReport:
    """Of a verification that scored one token, and rightly."""
    one = np.zeros(1, np.int32)
    differences = Breakdown.of([Differing(np.zeros(1), one, one)])
    controls = (Control("one log prob off by 0.01", UNCAUGHT not in failures, 0.01),)
    return VerifyReport(tolerance, 1, 1, 0, 0, {"raw": 1}, differences, None, controls, failures)


@pytest.mark.parametrize(
    ("tolerance", "failures", "status"),
    [
        (1e-3, (), 0),
        (1e-3, (UNCAUGHT,), 1),
        (1e-3, (UNREADABLE,), 1),
        (0.5, (UNCAUGHT,), 0),
        (0.5, (UNCAUGHT, UNREADABLE), 1),
    ],
)
def test_what_the_verification_finds_is_in_the_exit_status(
    tolerance: float, failures: tuple[str, ...], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(options: Options) -> Measured:
        held = Held("s", turns=[TurnRecord("chat", output_tokens=1)])
        return Measured(figures(Run([held], 1.0, 0.1, None), Findings(), report(tolerance, *failures)))

    monkeypatch.setattr(gpu_check, "measure", measure)
    assert gpu_check.main(["--store", str(tmp_path)]) == status
