"""The verdict of a load test, and its report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loadtest import report
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
    watch = Watch(samples=[Sample(101.0, "server 1", 0.5, 90.0)], stalls=[(101.0, 5.0)])
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


def test_the_report_needs_no_other_file(tmp_path) -> None:
    report.write(outcome(findings=Findings(1, 2, 1, 0, ["s: <lost>"])), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "A &lt;title&gt;" in page and "s: &lt;lost&gt;" in page and "Verdict: fail" in page
    assert page.count("<svg") == 8
    assert not any(mark in page for mark in ("src=", "href=", "@import", "url("))


@pytest.mark.parametrize(("seen", "lost"), [("[]", 1), ('[{"turn": 1, "before": null}, {"turn": 2, "before": 1}]', 2)])
def test_a_session_without_its_export_has_lost_its_turns(tmp_path, seen: str, lost: int) -> None:
    for name in ("seen", "exports"):
        (tmp_path / name).mkdir()
    (tmp_path / "seen" / "s").write_text(seen)
    found = judge_all(tmp_path, None)
    assert (found.sessions, found.lost, found.notes) == (1, lost, ["s: could not be finished"])
