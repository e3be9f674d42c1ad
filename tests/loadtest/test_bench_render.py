"""The benchmark of rendering measures what it says: sizes as asked for, the same conversation in each column."""

from __future__ import annotations

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
    done = {name: work() for name, work in bench_render.workloads(renderer, case, 1).items()}
    full, suffix, request = done["full"], done["suffix"], done["parse body"]
    assert list(done) == list(bench_render.COLUMNS)
    assert isinstance(full, Prompt) and full.ids.size == case.tokens
    assert done["library"].tolist() == full.ids.tolist()
    assert done["fastokens"].tolist() == done["fast, seen"].tolist() == full.ids.tolist()
    assert full.ids[-suffix.ids.size :].tolist() == suffix.ids.tolist()
    assert [*request.messages] == [*case.history, *case.new]


def test_unseen_text_is_as_long_and_different_each_time(renderer: Renderer) -> None:
    case = bench_render.make_case(renderer, 2_000)
    work = bench_render.workloads(renderer, case, 3)["fastokens"]
    first, second, third = (work() for _ in range(3))
    assert first.size == second.size == third.size
    assert (first != second).sum() > 100 and (second != third).sum() > 100


def test_the_median_leaves_out_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 10.001, 20.0, 20.002, 30.0, 30.009])
    monkeypatch.setattr(bench_render.time, "perf_counter", clock.__next__)
    runs: list[int] = []
    assert bench_render.timed({"work": lambda: runs.append(1)}, 3) == pytest.approx({"work": 2.0})
    assert len(runs) == 4


def test_figures_are_columns_by_history_and_the_growth_of_the_new_part() -> None:
    rows = {1_000: dict.fromkeys(bench_render.COLUMNS, 2.0), 100_000: dict.fromkeys(bench_render.COLUMNS, 5.0)}
    figures = {figure.name: figure for figure in bench_render.figures_of(rows)}
    assert (figures["full at 1k"].value, figures["full at 100k"].value) == (2.0, 5.0)
    assert (figures["suffix: growth"].value, figures["suffix: growth"].met) == (2.5, False)
    assert len(figures) == 2 * len(bench_render.COLUMNS) + 1
