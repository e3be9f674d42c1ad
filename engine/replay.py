"""Checks exported samples against any engine: ``python -m engine.replay FILE --triton HOST:PORT``.

Every trained turn is sent to the engine again (``replay_turn`` says what can be asked) and its log probs are compared.
``engine.verify`` needs the weights and gives each token; this needs only the address, and gives what the engine lets one
see: all tokens where seeds repeat, a choice of likely ones elsewhere.

Negative controls run each time, through the same code: turns with one prompt id changed, and one recorded log prob that
is off. If one passes as correct the verification cannot tell right from wrong, and fails. So does one that compared
nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from engine.differences import Breakdown
from engine.errors import EngineError
from engine.replay_report import ReplayReport, render
from engine.replay_turn import Outcome, Target, needs_other_guides, replay_turn, targets_of
from engine.sample_files import read_jsonl
from engine.sample_rows import SampleError, read_sample
from engine.types import Engine
from engine.verify_report import CONTROL_OFFSET, TOLERANCE, Control

CONTROL_TURNS = 3
"""Turns that are tried with a changed prompt: a token may happen to depend on none of what was changed."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """``tolerance`` is in nats: engines in bfloat16 differ by hundredths between batches, float32 ones by less than 1e-3."""

    tolerance: float = TOLERANCE
    concurrency: int = 8
    """Turns in flight."""
    probes: int = 4
    """Tokens of a turn that are asked for one by one where it did not come out the same."""
    same_ids: bool = False
    """Fail unless every turn comes out the same to the last token."""


async def replay_samples(
    engine: Engine, samples: Iterable[Mapping[str, Any]], options: ReplayOptions | None = None
) -> ReplayReport:
    """Send all trained turns to ``engine`` again. Faults of samples and failed turns are in the report, not raised."""
    options = options or ReplayOptions()
    targets, failures = _targets(samples, engine.info.vocab_size)
    checked = [target for target in targets if target.span.mode is engine.info.log_prob_mode]
    outcomes, failed = await _replay_all(engine, checked, options)
    try:
        controls = await _controls(engine, outcomes, options)
    except EngineError as error:
        controls, failed = (), [*failed, f"negative controls: {error}"]
    not_compared = _not_compared(engine, targets, outcomes)
    differences = Breakdown.of([outcome.measured() for outcome in outcomes])
    found = ReplayReport(
        tolerance=options.tolerance,
        model=engine.info.model,
        turns=len(checked),
        repeated=sum(outcome.repeated for outcome in outcomes),
        same_ids=sum(outcome.repeated and outcome.is_same for outcome in outcomes),
        probed=sum(outcome.probed for outcome in outcomes),
        contradicted=sum(outcome.contradicted for outcome in outcomes),
        trained_tokens=sum(int(target.trained.sum()) for target in targets),
        compared_tokens=differences.all.tokens,
        not_compared=not_compared,
        differences=differences,
        controls=controls,
        failures=(*failures, *failed),
    )
    return replace(found, failures=(*found.failures, *_verdict(found, outcomes, options)))


async def replay_at(
    address: str, samples: Iterable[Mapping[str, Any]], options: ReplayOptions | None = None
) -> ReplayReport:
    """``replay_samples`` with the engine at ``address`` (HOST:PORT). Raises: EngineError, if it is not fit to be asked."""
    from engine.client import TritonClient
    from engine.probe import probe

    async with TritonClient(address, await probe(address)) as engine:
        return await replay_samples(engine, samples, options)


def _targets(samples: Iterable[Mapping[str, Any]], vocab_size: int) -> tuple[list[Target], list[str]]:
    targets: list[Target] = []
    failures: list[str] = []
    for index, sample in enumerate(samples):
        try:
            targets += targets_of(index, read_sample(sample, vocab_size))
        except SampleError as error:
            failures.append(f"sample {index}: {error}")
    return targets, failures


async def _replay_all(
    engine: Engine, targets: Sequence[Target], options: ReplayOptions
) -> tuple[list[Outcome], list[str]]:
    """The outcomes in order, and what failed."""
    room = asyncio.Semaphore(options.concurrency)

    async def replay(target: Target) -> Outcome | str:
        async with room:
            try:
                return await replay_turn(engine, target, options.probes)
            except EngineError as error:
                return f"{target.name}: {error}"

    found = await asyncio.gather(*(replay(target) for target in targets))
    return [one for one in found if isinstance(one, Outcome)], [one for one in found if isinstance(one, str)]


def _not_compared(engine: Engine, targets: Sequence[Target], outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Trained tokens that were not compared, by reason."""
    counts: Counter[str] = Counter()
    answered = {id(outcome.target) for outcome in outcomes}
    for target in targets:
        if id(target) not in answered:
            counts["the turn was not answered, or its log probs are of another kind"] += int(target.trained.sum())
    for outcome in outcomes:
        open_places = outcome.target.trained & ~outcome.compared
        counts["other weights than the engine's"] += int((open_places & outcome.other_weights).sum())
        guided = needs_other_guides(engine, outcome.target.span)
        reason = "guided, which the engine does not offer" if guided else "did not come out, or was not asked for"
        counts[reason] += int((open_places & ~outcome.other_weights).sum())
    return {reason: count for reason, count in counts.items() if count}


async def _controls(engine: Engine, outcomes: Sequence[Outcome], options: ReplayOptions) -> tuple[Control, ...]:
    """Altered copies of the turns that say most; a control that sees nothing wrong is not caught. Raises: EngineError."""
    telling = [each for each in outcomes if each.compared.any() and not each.target.span.is_certain]
    telling.sort(key=lambda each: -int(each.compared.sum()))
    if not telling:
        return ()
    return (
        await _changed_prompt(engine, telling[:CONTROL_TURNS], options),
        await _changed_log_prob(engine, telling[0], options),
    )


async def _changed_prompt(engine: Engine, outcomes: Iterable[Outcome], options: ReplayOptions) -> Control:
    largest = 0.0
    for outcome in outcomes:
        prompt = outcome.target.prompt.copy()
        middle = prompt.size // 2
        prompt[middle] = (prompt[middle] + engine.info.vocab_size // 2) % engine.info.vocab_size
        altered = await replay_turn(engine, replace(outcome.target, prompt=prompt), max(1, options.probes))
        difference = math.inf if outcome.is_same and not altered.is_same else altered.largest
        largest = max(largest, 0.0 if math.isnan(difference) else difference)
        if largest > options.tolerance:
            break
    return Control("one prompt id changed", largest > options.tolerance, largest)


async def _changed_log_prob(engine: Engine, outcome: Outcome, options: ReplayOptions) -> Control:
    """The offset is twice the tolerance, where that hides the usual one."""
    offset = max(CONTROL_OFFSET, 2 * options.tolerance)
    target = outcome.target
    place = int(np.where(outcome.compared, target.recorded, -np.inf).argmax())
    recorded, trained = target.recorded.copy(), np.zeros_like(target.trained)
    recorded[place] -= offset
    trained[place] = True
    altered = await replay_turn(engine, replace(target, recorded=recorded, trained=trained), max(1, options.probes))
    difference = 0.0 if math.isnan(altered.largest) else altered.largest
    return Control(f"one log prob off by {offset:g}", difference > options.tolerance, difference)


def _verdict(report: ReplayReport, outcomes: Sequence[Outcome], options: ReplayOptions) -> list[str]:
    failures = [f"negative control not caught: {each.name}" for each in report.controls if not each.caught]
    differences = [each.differences[each.compared] for each in outcomes]
    beyond = sum(int((~(each <= options.tolerance)).sum()) for each in differences)
    if not report.controls:
        failures.append("no log prob could be compared that says anything")
    if beyond:
        failures.append(f"{beyond} of {report.compared_tokens} log probs differ by more than {options.tolerance:g}")
    if report.contradicted:
        failures.append(f"{report.contradicted} of {report.probed} likely tokens did not come out")
    if options.same_ids and report.same_ids < report.turns:
        failures.append(f"{report.turns - report.same_ids} of {report.turns} turns did not come out the same")
    return failures


def as_json(report: ReplayReport) -> str:
    """The report as one JSON object; numbers that are not finite are null."""
    return orjson.dumps(
        dataclasses.asdict(report) | {"ok": report.ok, "max_difference": report.max_difference}
    ).decode()


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if everything that was compared is right and the controls were caught, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m engine.replay", description="Send exported turns to an engine again."
    )
    parser.add_argument("file", type=Path, help="JSONL, one sample a line")
    parser.add_argument("--triton", required=True, metavar="HOST:PORT", help="gRPC address of the engine")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="nats (default: %(default)s)")
    parser.add_argument("--same-ids", action="store_true", help="fail unless every turn comes out the same")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    given = parser.parse_args(arguments)
    try:
        options = ReplayOptions(tolerance=given.tolerance, same_ids=given.same_ids)
        report = asyncio.run(replay_at(given.triton, read_jsonl(given.file), options))
    except (ValueError, OSError, EngineError) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    print(as_json(report) if given.json else render(report))
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
