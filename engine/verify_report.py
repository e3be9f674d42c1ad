"""What a verification found, and how it is told. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from engine.differences import Breakdown

TOLERANCE = 1e-3
"""Nats, for models in float32."""
CONTROL_OFFSET = 0.01
"""Nats by which a control's log prob is wrong."""
NOT_CAUGHT = "negative control not caught"
"""How the failure of a control begins."""


@dataclass(frozen=True, slots=True)
class WorstToken:
    """The token with the largest difference. ``position`` counts ``tokens``; ``text`` ends with the token's own text."""

    sample: int
    position: int
    token: int
    recorded: float
    recomputed: float
    text: str | None


@dataclass(frozen=True, slots=True)
class Control:
    """A verification that must find a fault: ``caught`` if it did, ``difference`` being the largest that it saw."""

    name: str
    caught: bool
    difference: float

    def __str__(self) -> str:
        outcome = "caught" if self.caught else "NOT CAUGHT"
        return f"negative control, {self.name}: {outcome}, {self.difference:.1e}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was found. Differences are in nats; they are NaN where nothing could be scored."""

    tolerance: float
    samples: int
    trained_tokens: int
    """Those that were scored."""
    unscored_tokens: int
    """Trained, but sampled in a way that ids alone do not tell: penalties, min_tokens or a guide over processed log probs."""
    masked_tokens: int
    """Of these, those behind a guide's mask."""
    modes: dict[str, int]
    """Scored tokens by log-prob mode."""
    differences: Breakdown
    worst: WorstToken | None
    controls: tuple[Control, ...]
    failures: tuple[str, ...]
    """Why the verification failed; empty if it did not."""

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def max_difference(self) -> float:
        return self.differences.all.max


def render(report: VerifyReport) -> str:
    """The report as lines of text; the last one ends with the figure."""
    modes = ", ".join(f"{count} {mode}" for mode, count in report.modes.items()) or "none"
    lines = [f"{report.samples} samples, trained log probs: {modes}; tolerance {report.tolerance:g}"]
    if others := report.unscored_tokens - report.masked_tokens:
        lines.append(f"{others} more were sampled with penalties or min_tokens and cannot be scored")
    if report.masked_tokens:
        lines.append(
            f"{report.masked_tokens} more were guided: not comparable, their log probs are those behind the mask"
        )
    lines += report.differences.lines()
    if report.worst is not None:
        lines.append(_worst_line(report.worst))
    lines += map(str, report.controls)
    lines += [f"FAILED: {failure}" for failure in report.failures]
    lines.append(f"max |log prob difference| {report.max_difference:.1e}")
    return "\n".join(lines)


def _worst_line(worst: WorstToken) -> str:
    text = "" if worst.text is None else f", at the end of {worst.text!r}"
    return (
        f"largest: sample {worst.sample}, position {worst.position}, token {worst.token}: "
        f"recorded {worst.recorded:.6f}, recomputed {worst.recomputed:.6f}{text}"
    )
