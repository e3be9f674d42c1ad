"""The benchmark of growth runs as it is documented; its long run is what says something of memory."""

from __future__ import annotations

import json

from loadtest import bench_growth
from tests.support.assets import tokenizer_dir


def test_it_looks_at_a_server_before_and_after(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(bench_growth, "WARM_UP_TURNS", 4)
    figures = tmp_path / "figures.json"
    options = ["--turns", "32", "--tokenizer", str(tokenizer_dir("qwen2_5")), "--json", str(figures)]
    bench_growth.main([*options, "--journal", str(tmp_path / "journal")])
    read = json.loads(figures.read_text())
    assert (read["turns"], read["journal"]) == (32, True)
    assert len(read["held"]) == bench_growth.LOOKS + 1
    assert read["grew"]
    assert f"{read['bytes_per_turn']} bytes a turn" in capsys.readouterr().out
