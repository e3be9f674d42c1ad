"""Independent re-scoring of exported samples: ``python -m engine.verify FILE --model DIR``.

Every trained token's recorded log prob is compared with what a plain forward pass over the sample's ids gives. If the
ids, their order, the mask, the log probs or the weights were not those of the rollout, the two differ. Imports nothing
that serves or records.

Two negative controls run each time on altered copies of a sample, through the same code: one prompt id changed, and one
recorded log prob off by 0.01. If one of them passes as correct, the verification can not tell right from wrong, and
fails. So does a file without a trained token.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engine.sample_rows import SampleError, SampleRow, read_sample
from engine.types import LogProbs

TOLERANCE = 1e-3
"""Nats, for models in float32."""
CONTROL_OFFSET = 0.01
"""Nats by which the second control's log prob is wrong."""
QUANTILES = (0.5, 0.9, 0.99)
CONTEXT_TOKENS = 12
"""How many tokens up to the worst one are decoded for the report."""


Decode = Callable[[list[int]], str]


class Scorer(Protocol):
    """What gives the true log probs, in the order of ``SampleRow.trained``; ``engine.rescore.PlainModel`` does."""

    @property
    def vocab_size(self) -> int: ...

    def log_probs(self, row: SampleRow) -> LogProbs: ...


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


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was found. Differences are in nats; they are NaN where nothing could be scored."""

    tolerance: float
    samples: int
    trained_tokens: int
    modes: dict[str, int]
    """Trained tokens by log-prob mode."""
    max_difference: float
    mean_difference: float
    quantiles: dict[str, float]
    worst: WorstToken | None
    controls: tuple[Control, ...]
    failures: tuple[str, ...]
    """Why the verification failed; empty if it did not."""

    @property
    def ok(self) -> bool:
        return not self.failures


def verify_samples(samples: Iterable[Mapping[str, Any]], model_dir: Path, tolerance: float = TOLERANCE) -> VerifyReport:
    """Score all samples again with the model in ``model_dir``. Faults of samples are in the report, not raised."""
    from engine.rescore import PlainModel

    return verify_with(PlainModel(model_dir), samples, tolerance, _decoder(model_dir))


def verify_with(
    scorer: Scorer, samples: Iterable[Mapping[str, Any]], tolerance: float, decode: Decode | None = None
) -> VerifyReport:
    """``verify_samples`` with any scorer; ``decode`` makes text of token ids for the report."""
    rows, failures = _read(samples, scorer.vocab_size)
    scored = [_score(scorer, index, row) for index, row in rows.items() if row.trained.any()]
    if not scored:
        failures.append("there is no trained token to verify")
    differences = np.concatenate([each.differences for each in scored]) if scored else np.array([np.nan])
    controls = _run_controls(scorer, [each.row for each in scored], tolerance)
    return VerifyReport(
        tolerance=tolerance,
        samples=len(rows),
        trained_tokens=sum(len(each.differences) for each in scored),
        modes=_tokens_by_mode(each.row for each in scored),
        max_difference=float(differences.max()),
        mean_difference=float(differences.mean()),
        quantiles={f"p{100 * q:g}": float(np.quantile(differences, q, method="higher")) for q in QUANTILES},
        worst=_worst_token(scored, decode),
        controls=controls,
        failures=(*failures, *_verdict(differences, tolerance, controls)),
    )


@dataclass(frozen=True, slots=True)
class _Scored:
    """A sample and what its trained tokens' log probs should be: float32 [number of trained tokens]."""

    index: int
    row: SampleRow
    recomputed: LogProbs

    @property
    def recorded(self) -> LogProbs:
        return self.row.recorded[self.row.trained]

    @property
    def differences(self) -> NDArray[np.float64]:
        difference: NDArray[np.float64] = np.abs(self.recomputed.astype(np.float64) - self.recorded)
        return difference


def _read(samples: Iterable[Mapping[str, Any]], vocab_size: int) -> tuple[dict[int, SampleRow], list[str]]:
    rows: dict[int, SampleRow] = {}
    failures: list[str] = []
    for index, sample in enumerate(samples):
        try:
            rows[index] = read_sample(sample, vocab_size)
        except SampleError as error:
            failures.append(f"sample {index}: {error}")
    return rows, failures


def _score(scorer: Scorer, index: int, row: SampleRow) -> _Scored:
    return _Scored(index, row, scorer.log_probs(row))


def _tokens_by_mode(rows: Iterable[SampleRow]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for row in rows:
        for span in row.spans:
            counts[str(span.mode)] += int(row.trained[span.start : span.end].sum())
    return dict(counts)


def _run_controls(scorer: Scorer, rows: Sequence[SampleRow], tolerance: float) -> tuple[Control, ...]:
    if not rows:
        return ()
    row = max(rows, key=_informative_tokens)
    altered = {
        "one prompt id changed": _with_other_prompt(row, scorer.vocab_size),
        "one log prob off by 0.01": _off(row),
    }
    found = {name: float(_score(scorer, 0, wrong).differences.max()) for name, wrong in altered.items()}
    return tuple(Control(name, difference > tolerance, difference) for name, difference in found.items())


def _informative_tokens(row: SampleRow) -> int:
    """Trained tokens whose log probs depend on the prompt."""
    return sum(int(row.trained[span.start : span.end].sum()) for span in row.spans if not span.is_certain)


def _with_other_prompt(row: SampleRow, vocab_size: int) -> SampleRow:
    tokens = row.tokens.copy()
    middle = row.prompt_length // 2
    tokens[middle] = (tokens[middle] + vocab_size // 2) % vocab_size
    return replace(row, tokens=tokens)


def _off(row: SampleRow) -> SampleRow:
    recorded = row.recorded.copy()
    trained = np.flatnonzero(row.trained)
    recorded[trained[len(trained) // 2]] -= CONTROL_OFFSET
    return replace(row, recorded=recorded)


def _verdict(differences: NDArray[np.float64], tolerance: float, controls: Iterable[Control]) -> list[str]:
    failures = [f"negative control not caught: {each.name}" for each in controls if not each.caught]
    beyond = int((~(differences <= tolerance)).sum())
    if controls and beyond:
        failures.append(f"{beyond} of {len(differences)} log probs differ by more than {tolerance:g}")
    return failures


def _worst_token(scored: Sequence[_Scored], decode: Decode | None) -> WorstToken | None:
    if not scored:
        return None
    each = max(scored, key=lambda one: float(one.differences.max()))
    place = int(each.differences.argmax())
    position = each.row.prompt_length + int(np.flatnonzero(each.row.trained)[place])
    context = each.row.tokens[max(0, position + 1 - CONTEXT_TOKENS) : position + 1].tolist()
    return WorstToken(
        sample=each.index,
        position=position,
        token=int(each.row.tokens[position]),
        recorded=float(each.recorded[place]),
        recomputed=float(each.recomputed[place]),
        text=decode(context) if decode else None,
    )


def _decoder(model_dir: Path) -> Decode | None:
    file = model_dir / "tokenizer.json"
    if not file.is_file():
        return None
    tokenizer = Tokenizer.from_file(str(file))
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))


def render(report: VerifyReport) -> str:
    """The report as lines of text; the last one ends with the figure."""
    modes = ", ".join(f"{count} {mode}" for mode, count in report.modes.items()) or "none"
    lines = [f"{report.samples} samples, trained log probs: {modes}; tolerance {report.tolerance:g}"]
    quantiles = ", ".join(f"{name} {value:.1e}" for name, value in report.quantiles.items())
    lines.append(f"|log prob difference| mean {report.mean_difference:.1e}, {quantiles}")
    if report.worst is not None:
        worst = report.worst
        lines.append(
            f"largest: sample {worst.sample}, position {worst.position}, token {worst.token}: "
            f"recorded {worst.recorded:.6f}, recomputed {worst.recomputed:.6f}"
            + ("" if worst.text is None else f", at the end of {worst.text!r}")
        )
    for control in report.controls:
        outcome = "caught" if control.caught else "NOT CAUGHT"
        lines.append(f"negative control, {control.name}: {outcome}, {control.difference:.1e}")
    lines += [f"FAILED: {failure}" for failure in report.failures]
    lines.append(f"max |log prob difference| {report.max_difference:.1e}")
    return "\n".join(lines)


def read_jsonl(path: Path) -> list[Mapping[str, Any]]:
    """Samples of a JSONL file, blank lines left out. Raises: SampleError, OSError."""
    samples: list[Mapping[str, Any]] = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            sample = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise SampleError(f"{path}:{number} is not JSON: {error}") from error
        if not isinstance(sample, dict):
            raise SampleError(f"{path}:{number} is not a JSON object")
        samples.append(sample)
    return samples


def _hide_progress_bars() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every log prob is right and both controls were caught, else 1."""
    parser = argparse.ArgumentParser(prog="python -m engine.verify", description="Score exported samples again.")
    parser.add_argument("file", type=Path, help="JSONL, one sample a line")
    parser.add_argument(
        "--model", type=Path, required=True, metavar="DIR", help="checkpoint folder of the same weights"
    )
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="nats (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    given = parser.parse_args(arguments)
    _hide_progress_bars()
    try:
        samples = read_jsonl(given.file)
        report = verify_samples(samples, given.model, given.tolerance)
    except (ValueError, OSError) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    text = orjson.dumps(dataclasses.asdict(report) | {"ok": report.ok}).decode() if given.json else render(report)
    print(text)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
