"""The main job as the README shows it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

COMMAND = Path(sys.executable).with_name("rollserve")


def test_the_demo_verifies_its_own_samples(tmp_path: Path) -> None:
    result = subprocess.run(
        [COMMAND, "demo", "--out", tmp_path], capture_output=True, text=True, timeout=280, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    figure = re.search(r"max \|log prob difference\| (\S+)$", result.stdout.strip())
    assert figure is not None
    assert 0 < float(figure[1]) <= 1e-3
    assert result.stdout.count("caught") == 2
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert {sample["metadata"]["sid"] for sample in samples} == {"demo-anthropic", "demo-openai"}
    temperatures = {turn["temperature"] for sample in samples for turn in sample["metadata"]["turns"]}
    assert temperatures == {1.0, 0.7}
