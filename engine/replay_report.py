"""What came of sending exported turns to an engine again, and how it is told. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.differences import Breakdown
from engine.verify_report import Control


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """Differences are in nats; they are NaN where nothing could be compared."""

    tolerance: float
    model: str
    turns: int
    repeated: int
    """Turns that were generated again with everything that had been in force, the seed included."""
    same_ids: int
    """Of these, turns that came out the same to the last token."""
    probed: int
    """Tokens that were asked for one by one, after the prompt and the recorded output before them."""
    contradicted: int
    """Of these, tokens of more than half of the probability mass that did not come out."""
    trained_tokens: int
    compared_tokens: int
    not_compared: Mapping[str, int]
    """Trained tokens by reason."""
    differences: Breakdown
    controls: tuple[Control, ...]
    failures: tuple[str, ...]
    """Why the verification failed; empty if it did not."""

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def max_difference(self) -> float:
        return self.differences.all.max


def render(report: ReplayReport) -> str:
    """The report as lines of text; the last one ends with the figure."""
    lines = [
        f"{report.turns} turns sent to {report.model} again; tolerance {report.tolerance:g}",
        f"with their seeds: {report.same_ids} of {report.repeated} gave the same ids",
        f"token by token: {report.probed} asked for, {report.contradicted} contradicted",
        f"{report.compared_tokens} of {report.trained_tokens} trained tokens compared",
    ]
    lines += [f"  not compared, {reason}: {count}" for reason, count in report.not_compared.items()]
    lines += report.differences.lines()
    lines += map(str, report.controls)
    lines += [f"FAILED: {failure}" for failure in report.failures]
    lines.append(f"max |log prob difference| {report.max_difference:.1e}")
    return "\n".join(lines)
