"""The benchmark of rendering measures what it says: sizes as asked for, the same conversation in each column."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from adapter.render.prompt import Prompt, Renderer
from loadtest import bench_render
from tests.support.assets import demo_model_dir


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer.load(demo_model_dir())


@pytest.mark.parametrize("tokens", [1_000, 5_000])
def test_a_case_has_the_size_that_was_asked_for(renderer: Renderer, tokens: int) -> None:
    case = bench_render.make_case(renderer, tokens)
    new = renderer.encoder.encode(case.new[0]["content"]).size
    assert 500 <= new < 560
    assert 0.7 * tokens < case.tokens - new < 1.3 * tokens


def test_every_column_sees_the_same_conversation(renderer: Renderer) -> None:
    case = bench_render.make_case(renderer, 2_000)
    done = {name: work() for name, work in bench_render.workloads(renderer, case).items()}
    full, suffix, request = done["full"], done["suffix"], done["parse body"]
    assert list(done) == list(bench_render.COLUMNS)
    assert isinstance(full, Prompt) and full.ids.size == case.tokens
    assert done["library"].tolist() == full.ids.tolist()
    assert full.ids[-suffix.ids.size :].tolist() == suffix.ids.tolist()
    assert [*request.messages] == [*case.history, *case.new]


def test_the_median_leaves_out_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 10.001, 20.0, 20.002, 30.0, 30.009])
    monkeypatch.setattr(bench_render.time, "perf_counter", clock.__next__)
    runs: list[int] = []
    assert bench_render.measure({"work": lambda: runs.append(1)}, 3) == pytest.approx({"work": 2.0})
    assert len(runs) == 4


def test_table_and_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench_render, "HISTORY_TOKENS", (1_000, 2_000))
    monkeypatch.setattr(bench_render, "measure", lambda work, repeats: dict.fromkeys(work, repeats / 4))
    bench_render.main(["--tokenizer", str(demo_model_dir()), "--repeats", "6", "--json", str(tmp_path / "out.json")])
    lines = capsys.readouterr().out.splitlines()
    columns = len(bench_render.COLUMNS)
    assert lines[1].split() == ["history", "tokens", *" ".join(bench_render.COLUMNS).split()]
    assert lines[2].split() == ["1,000", *["1.50", "ms"] * columns]
    assert lines[4].split() == ["growth", *["1.0x"] * columns]
    figures = orjson.loads((tmp_path / "out.json").read_bytes())
    assert figures["milliseconds"]["2000"] == dict.fromkeys(bench_render.COLUMNS, 1.5)
    assert figures["machine"]["cores"] > 0
