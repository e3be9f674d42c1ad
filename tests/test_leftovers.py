"""The check for leftover processes finds what it should, and a test run with a leftover fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.leftovers import left_running

ORPHAN = "import subprocess as s; print(s.Popen(['sleep', '300'], stdout=s.DEVNULL).pid)"


def test_a_process_whose_parent_is_gone_is_found(monkeypatch) -> None:
    monkeypatch.setenv("LEFTOVER_MARK", "a")
    pid = int(subprocess.run([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, check=True).stdout)
    try:
        assert left_running("LEFTOVER_MARK=a", grace=0.0) == {pid: "sleep 300"}
        assert left_running("LEFTOVER_MARK=b", grace=0.0) == {}
    finally:
        subprocess.run(["kill", str(pid)], check=True)


def test_a_process_that_ends_in_time_is_not_a_leftover(monkeypatch) -> None:
    monkeypatch.setenv("LEFTOVER_MARK", "c")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert list(left_running("LEFTOVER_MARK=c", grace=0.0)) == [process.pid]
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
        assert left_running("LEFTOVER_MARK=c", grace=60.0) == {}


@pytest.mark.parametrize("processes", [(), ("-n", "1")], ids=["alone", "shared"])
def test_a_run_with_a_leftover_fails_and_names_it(tmp_path: Path, processes: tuple[str, ...]) -> None:
    conftest = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8").replace("= 10.0", "= 0.0")
    (tmp_path / "conftest.py").write_text(conftest, encoding="utf-8")
    (tmp_path / "test_leaky.py").write_text(
        "import subprocess\ndef test_leak():\n    globals()['kept'] = subprocess.Popen(['sleep', '301'])\n",
        encoding="utf-8",
    )
    project = Path(__file__).parents[1]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        *processes,
        str(tmp_path),
    ]
    run = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "was left running: sleep 301" in run.stdout
    assert "1 passed" in run.stdout
