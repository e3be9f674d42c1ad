"""The verdict of a load test, and its report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from loadtest import picture, report
from loadtest.figures import Figure
from loadtest.judge import Findings
from loadtest.verdict import Outcome, Seconds, figures, judge_all
from loadtest.watch import Sample, Watch

TURN: dict[str, Any] = {
    "at": 100.0, "protocol": "chat", "ttft_ms": 20.0, "gap_ms": 30.0, "pieces": 3,
    "turn_ms": 200.0, "output_tokens": 10, "error": None, "left": False,
}  # fmt: skip
GOOD = Seconds([TURN, {**TURN, "at": 110.0}], [{"at": 100, "lag_ms": 2.0}])


def outcome(seconds: Seconds = GOOD, findings: Findings | None = None) -> Outcome:
    found = findings or Findings(sessions=1, turns=2)
    samples = [Sample(101.0, "server 1", 0.5, 90.0)]
    watch = Watch(samples=samples, stalls=[(101.0, 5.0)], content=[(101.0, 20.0)])
    return Outcome("A <title>", seconds, watch, found, figures(seconds, watch, found))


def test_a_good_run_passes_with_what_was_achieved() -> None:
    good = outcome()
    assert good.passed
    values = {figure.name: figure.value for figure in good.figures}
    assert (values["achieved rate"], values["achieved tokens"], values["turn p99"]) == (0.2, 2.0, 200.0)


@pytest.mark.parametrize(
    ("seconds", "findings", "missed"),
    [
        (Seconds([], []), None, "runs without a whole turn"),
        (GOOD, Findings(1, 2, lost=1), "lost turns"),
        (GOOD, Findings(1, 2, inexact=1), "inexact turns"),
        (replace(GOOD, turns=[TURN, {**TURN, "error": "503"}]), None, "errors"),
        (replace(GOOD, turns=[{**TURN, "ttft_ms": 20_000.0}]), None, "time to first token p99"),
        (replace(GOOD, lags=[{"at": 1, "lag_ms": 900.0}]), None, "generator's lag p99"),
    ],
)
def test_each_threshold_decides(seconds: Seconds, findings: Findings | None, missed: str) -> None:
    bad = outcome(seconds, findings)
    assert [figure.name for figure in bad.figures if figure.met is False] == [missed]
    assert not bad.passed


def remembering(megabytes: Callable[[float], float], lasted_s: int) -> Figure:
    """The growth of a server of two processes with 10 MB each in sessions, ``megabytes`` resident each at a share of the time."""
    seconds = range(lasted_s + 1)
    samples = [Sample(1000.0 + at, f"server {pid}", 0.5, megabytes(at / lasted_s)) for at in seconds for pid in (1, 2)]
    watch = Watch(samples=samples, content=[(1000.5 + at, 20.0) for at in seconds])
    return next(each for each in figures(GOOD, watch, Findings()) if "growth" in each.name)


def test_memory_that_grows_behind_the_warm_up_fails_a_long_run() -> None:
    assert remembering(lambda share: 60 + 40 * min(share, 0.5), 600).met
    growing = remembering(lambda share: 60 + 40 * share, 600)
    assert growing.met is False
    assert growing.value == pytest.approx(100 * (2 * 96 - 20) / (2 * 84 - 20) - 100, rel=0.02)
    assert remembering(lambda share: 60 + 40 * share, 60).met is None


def test_the_picture_is_an_image_of_its_own(tmp_path: Path) -> None:
    picture.write(outcome(), tmp_path / "report.svg")
    root = ElementTree.parse(tmp_path / "report.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    said = " ".join(element.text or "" for element in root.iter() if element.tag.endswith("text"))
    assert "A <title>: verdict pass" in said and "lost turns: 0 turns (at most 0)" in said
    assert sum(title in said for title in picture.PLOTS) == 4


def test_the_report_needs_no_other_file(tmp_path) -> None:
    report.write(outcome(findings=Findings(1, 2, 1, 0, ["s: <lost>"])), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "A &lt;title&gt;" in page and "s: &lt;lost&gt;" in page and "Verdict: fail" in page
    assert page.count("<svg") == 9
    assert not any(mark in page for mark in ("src=", "href=", "@import", "url("))


TWO = '[{"turn": 1, "before": null, "said": "a"}, {"turn": 2, "before": 1, "said": "b"}]'


@pytest.mark.parametrize(("seen", "lost"), [("[]", 1), (TWO, 2)])
def test_a_session_without_its_export_has_lost_its_turns(tmp_path, seen: str, lost: int) -> None:
    for name in ("seen", "exports"):
        (tmp_path / name).mkdir()
    (tmp_path / "seen" / "s").write_text(seen)
    found = judge_all(tmp_path, None, None)
    assert (found.sessions, found.lost, found.notes) == (1, lost, ["s: could not be finished"])
