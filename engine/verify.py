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
from tokenizers import Tokenizer

from engine.differences import Breakdown, Differences, Measured
from engine.sample_files import read_jsonl
from engine.sample_rows import SampleError, SampleRow, read_sample
from engine.types import LogProbs
from engine.verify_report import CONTROL_OFFSET, NOT_CAUGHT, TOLERANCE, Control, VerifyReport, WorstToken, render
from engine.weights_by_version import WeightsByVersion, read_weights

__all__ = [
    "Control",
    "Scorer",
    "VerifyReport",
    "WorstToken",
    "main",
    "read_jsonl",
    "render",
    "verify_samples",
    "verify_with",
]

CONTEXT_TOKENS = 12
"""How many tokens up to the worst one are decoded for the report."""


Decode = Callable[[list[int]], str]


class Scorer(Protocol):
    """What gives the true log probs of the tokens in ``SampleRow.scored``, in order; ``engine.rescore.PlainModel`` does."""

    @property
    def vocab_size(self) -> int: ...

    def log_probs(self, row: SampleRow) -> LogProbs: ...


def verify_samples(
    samples: Iterable[Mapping[str, Any]],
    model_dir: Path,
    tolerance: float = TOLERANCE,
    weights: Mapping[int, Path] | None = None,
    *,
    served_model: str | None = None,
    lora: Path | None = None,
) -> VerifyReport:
    """Score all samples again with the model in ``model_dir``; with ``weights``, each token by those of its version.

    ``served_model`` picks what the weights of one served name sampled, ``lora`` is merged into the model. Faults of samples are in
    the report, not raised. Raises: OSError, if a checkpoint cannot be loaded or is missing.
    """
    from engine.rescore import PlainModel

    def load(folder: Path) -> PlainModel:
        return PlainModel(folder, lora)

    scorer: Scorer = WeightsByVersion(weights, load) if weights else load(model_dir)
    return verify_with(scorer, samples, tolerance, _decoder(model_dir), served_model)


def verify_with(
    scorer: Scorer,
    samples: Iterable[Mapping[str, Any]],
    tolerance: float,
    decode: Decode | None = None,
    served_model: str | None = None,
) -> VerifyReport:
    """``verify_samples`` with any scorer; ``decode`` makes text of token ids for the report."""
    rows, failures = _read(samples, scorer.vocab_size)
    rows, unnamed = _of_one_model(rows, served_model)
    failures += unnamed
    scored = [_score(scorer, index, row) for index, row in rows.items() if row.scored.any()]
    if not scored:
        failures.append("there is no trained token to verify")
    differences = Breakdown.of([each.measured() for each in scored])
    controls = _run_controls(scorer, [each.row for each in scored], tolerance)
    tokens = sum(len(each.recomputed) for each in scored)
    return VerifyReport(
        tolerance=tolerance,
        samples=len(rows),
        trained_tokens=tokens,
        unscored_tokens=sum(int(row.trained.sum()) for row in rows.values()) - tokens,
        masked_tokens=sum(_masked_tokens(row) for row in rows.values()),
        modes=_tokens_by_mode(each.row for each in scored),
        differences=differences,
        worst=_worst_token(scored, decode),
        controls=controls,
        failures=(*failures, *_verdict(scored, tolerance, controls)),
    )


@dataclass(frozen=True, slots=True)
class _Scored:
    """A sample and what the log probs of its ``row.scored`` tokens should be: float32 [number of them]."""

    index: int
    row: SampleRow
    recomputed: LogProbs

    @property
    def recorded(self) -> LogProbs:
        return self.row.recorded[self.row.scored]

    @property
    def differences(self) -> Differences:
        difference: Differences = np.abs(self.recomputed.astype(np.float64) - self.recorded)
        return difference

    def measured(self) -> Measured:
        scored = self.row.scored
        return Measured(self.differences, self.row.versions[scored], self.row.turns[scored])


def _read(samples: Iterable[Mapping[str, Any]], vocab_size: int) -> tuple[dict[int, SampleRow], list[str]]:
    rows: dict[int, SampleRow] = {}
    failures: list[str] = []
    for index, sample in enumerate(samples):
        try:
            rows[index] = read_sample(sample, vocab_size)
        except SampleError as error:
            failures.append(f"sample {index}: {error}")
    return rows, failures


def _of_one_model(rows: Mapping[int, SampleRow], served_model: str | None) -> tuple[dict[int, SampleRow], list[str]]:
    names = sorted(frozenset[str]().union(*(row.models for row in rows.values())))
    if served_model is not None:
        known = (
            [] if served_model in names else [f"nothing was sampled by {served_model!r}; there is {', '.join(names)}"]
        )
        return {index: row.of_model(served_model) for index, row in rows.items()}, known
    if len(names) > 1:
        return dict(rows), [f"several served models sampled this: {', '.join(names)}; name one with --served-model"]
    return dict(rows), []


def _score(scorer: Scorer, index: int, row: SampleRow) -> _Scored:
    return _Scored(index, row, scorer.log_probs(row))


def _tokens_by_mode(rows: Iterable[SampleRow]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for row in rows:
        for span in row.spans:
            counts[str(span.mode)] += int(row.scored[span.start : span.end].sum())
    return {mode: count for mode, count in counts.items() if count}


def _masked_tokens(row: SampleRow) -> int:
    return sum(int(row.trained[span.start : span.end].sum()) for span in row.spans if span.is_masked)


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
    """Scored tokens whose log probs depend on the prompt."""
    return sum(int(row.scored[span.start : span.end].sum()) for span in row.spans if not span.is_certain)


def _with_other_prompt(row: SampleRow, vocab_size: int) -> SampleRow:
    tokens = row.tokens.copy()
    middle = row.prompt_length // 2
    tokens[middle] = (tokens[middle] + vocab_size // 2) % vocab_size
    return replace(row, tokens=tokens)


def _off(row: SampleRow) -> SampleRow:
    recorded = row.recorded.copy()
    scored = np.flatnonzero(row.scored)
    recorded[scored[len(scored) // 2]] -= CONTROL_OFFSET
    return replace(row, recorded=recorded)


def _verdict(scored: Iterable[_Scored], tolerance: float, controls: Iterable[Control]) -> list[str]:
    differences = np.concatenate([np.empty(0), *(each.differences for each in scored)])
    failures = [f"{NOT_CAUGHT}: {each.name}" for each in controls if not each.caught]
    beyond = int((~(differences <= tolerance)).sum())
    if beyond:
        failures.append(f"{beyond} of {len(differences)} log probs differ by more than {tolerance:g}")
    return failures


def _worst_token(scored: Sequence[_Scored], decode: Decode | None) -> WorstToken | None:
    if not scored:
        return None
    each = max(scored, key=lambda one: float(one.differences.max()))
    place = int(each.differences.argmax())
    position = each.row.prompt_length + int(np.flatnonzero(each.row.scored)[place])
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


def as_json(report: VerifyReport) -> str:
    """The report as one JSON object; numbers that are not finite are null."""
    return orjson.dumps(
        dataclasses.asdict(report) | {"ok": report.ok, "max_difference": report.max_difference}
    ).decode()


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every log prob is right and both controls were caught, else 1."""
    parser = argparse.ArgumentParser(prog="python -m engine.verify", description="Score exported samples again.")
    parser.add_argument("file", type=Path, help="JSONL, one sample a line")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=Path, metavar="DIR", help="checkpoint folder of the same weights")
    source.add_argument(
        "--weights",
        action="append",
        default=[],
        metavar="VERSION=DIR",
        help="checkpoint folder of the weights of one version; repeat it for each version that sampled",
    )
    parser.add_argument("--served-model", metavar="NAME", help="only what the weights of this served name sampled")
    parser.add_argument("--lora", type=Path, metavar="DIR", help="a LoRA adapter to merge into the checkpoint")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="nats (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    given = parser.parse_args(arguments)
    try:
        samples = read_jsonl(given.file)
        weights = read_weights(given.weights)
        model_dir = given.model or next(iter(weights.values()))
        names = {"served_model": given.served_model, "lora": given.lora}
        report = verify_samples(samples, model_dir, given.tolerance, weights, **names)
    except (ValueError, OSError) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    print(as_json(report) if given.json else render(report))
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
