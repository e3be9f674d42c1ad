"""A load test from start to verdict.

    rollserve loadtest [--users N] [--shape steady|ramp|spike|soak] [--minutes M] [--workers N] [--scale X] [--gap-scale X]
                       [--triton HOST:PORT --tokenizer DIR | --url URL [--no-sessions]] [--out FOLDER]

The same as ``python -m loadtest``, which needs --tokenizer where it starts a server. Starts the scripted model with the times of
a GPU and a server in front of it (or uses what is given), lets Locust's agents work on it, judges every session, and writes
FOLDER/report.html, with the most important of it in FOLDER/report.svg. Exit status: 0 verdict pass, 1 verdict fail, 2 it could not
be carried out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest.figures import table
from loadtest.program import say
from loadtest.shapes import Load
from loadtest.system import SystemFailed
from loadtest.target import Sayings, Target, target

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
STOP_S = 60
"""For turns under way and for the exports, at the end."""
PROGRESS_S = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    if mistake := _mistake(arguments):
        parser.error(mistake)
    if any(importlib.util.find_spec(name) is None for name in ("locust", "psutil")):
        print("Locust is missing; install it: pip install 'rollserve[loadtest]'", file=sys.stderr)
        return 2
    try:
        return asyncio.run(_run(arguments))
    except SystemFailed as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rollserve loadtest", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, default=10, help="Agents at once, at most (default: %(default)s).")
    parser.add_argument("--shape", type=Load, choices=list(Load), default=Load.STEADY, help="Agents over time.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=1, help="Of the server that is started.")
    parser.add_argument("--scale", type=float, default=0.1, help="Of tokens, 0 to 1 (default: %(default)s).")
    parser.add_argument("--gap-scale", type=float, default=0.25, help="Of gaps between turns (default: %(default)s).")
    parser.add_argument("--seed", type=int, default=1)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--triton", help="HOST:PORT of a Triton that runs; needs --tokenizer.")
    where.add_argument("--url", help="A server that runs, of any kind.")
    parser.add_argument(
        "--no-sessions", action="store_true", help="It has no /v1/sessions: nothing is exported or judged."
    )
    parser.add_argument("--tokenizer", type=Path, help="Folder; default: the demo model's.")
    parser.add_argument("--out", type=Path, default=Path(".loadtest"), help="Folder (default: %(default)s).")
    return parser


def _mistake(arguments: argparse.Namespace) -> str | None:
    """What is wrong with a value, for people."""
    at_least = {"users": 1, "workers": 1, "minutes": 0.01, "gap_scale": 0.0, "scale": 0.0001}
    for name, least in at_least.items():
        value = getattr(arguments, name)
        if not (least <= value and math.isfinite(value)):
            return f"argument --{name.replace('_', '-')}: it is {value}, and must be {least:g} or more"
    if arguments.scale > 1:
        return f"argument --scale: it is {arguments.scale}, and must be 1 or less"
    if arguments.url is not None and not arguments.url.startswith(("http://", "https://")):
        return f"argument --url: {arguments.url!r} has not the form http://HOST:PORT"
    if arguments.no_sessions and arguments.url is None:
        return "argument --no-sessions: it is for a server that is named with --url"
    return None


async def _run(arguments: argparse.Namespace) -> int:
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer = arguments.tokenizer
    if tokenizer is None and arguments.url is None:
        say("--tokenizer DIR is needed")
        return 2
    async with target(arguments.url, arguments.triton, tokenizer, arguments.workers) as system:
        return await _load(system, arguments)


async def _load(system: Target, arguments: argparse.Namespace) -> int:
    from loadtest import picture, report, verdict
    from loadtest.watch import SERVER, Watch

    watch, record = Watch(), _fresh(arguments.out)
    with (arguments.out / "locust.log").open("wb") as log:
        locust = await asyncio.create_subprocess_exec(*_command(system, arguments, record), stdout=log, stderr=log)
        roots = {"load generator": locust.pid, **({} if system.pid is None else {SERVER: system.pid})}
        tasks = [asyncio.create_task(watch.run(system.url, roots)), asyncio.create_task(_progress(record))]
        try:
            await locust.wait()
        finally:
            if locust.returncode is None:
                locust.terminate()
                await locust.wait()
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
    say("judging")
    says = None if system.engine_log is None else Sayings(arguments.tokenizer)
    seconds, findings = verdict.read(record), verdict.judge_all(record, system.engine_log, says)
    title = f"Load test: {arguments.users} agents, {arguments.shape}, {arguments.minutes:g} min"
    outcome = verdict.Outcome(title, seconds, watch, findings, verdict.figures(seconds, watch, findings))
    report.write(outcome, arguments.out / "report.html")
    picture.write(outcome, arguments.out / "report.svg")
    print(table(outcome.figures, {}))
    print("\n".join(findings.notes[:10]))
    print(f"verdict: {'pass' if outcome.passed else 'FAIL'}; report: {arguments.out / 'report.html'}", flush=True)
    return 0 if outcome.passed else 1


def _command(system: Target, arguments: argparse.Namespace, record: Path) -> list[str]:
    words = [
        sys.executable,
        "-m",
        "locust",
        "-f",
        str(LOCUSTFILE),
        "--headless",
        "--host",
        system.url,
        "--record",
        str(record),
    ]
    words += ["--agents", str(arguments.users), "--load", arguments.shape, "--minutes", str(arguments.minutes)]
    words += ["--scale", str(arguments.scale), "--gap-scale", str(arguments.gap_scale), "--seed", str(arguments.seed)]
    words += ["--stop-timeout", str(STOP_S), "--only-summary", "--exit-code-on-error", "0"]
    return [*words, "--no-sessions"] if arguments.no_sessions else words


def _fresh(out: Path) -> Path:
    """A folder for this run's records; those of earlier runs stay."""
    number = 1 + sum(1 for _ in out.glob("run-*"))
    record = out / f"run-{number}"
    record.mkdir()
    return record


async def _progress(record: Path) -> None:
    from loadtest import verdict

    while True:
        await asyncio.sleep(PROGRESS_S)
        seconds = verdict.read(record)
        errors = sum(turn["error"] is not None for turn in seconds.turns)
        say(f"{len(seconds.ended)} turns, {errors} errors")


if __name__ == "__main__":
    sys.exit(main())
