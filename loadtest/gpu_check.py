"""``model_repo/transformers`` on a GPU under a real tritonserver, with many sessions at once: is it exact, and what does it cost?

    python -m loadtest.gpu_check [--sessions 256] [--turns 3] [--layers 22 --hidden 2048] [--dtype bfloat16|float32]
                                 [--tokenizer DIR] [--limit-s 240] [--engine-setting NAME=VALUE] [--json FILE]
    python -m loadtest.gpu_check --quick      a tiny model and few sessions: a rehearsal, on a CPU, too

1. A checkpoint of random weights is made (default: 1.5 billion parameters), with the demo model's tokenizer or ``--tokenizer``'s.
2. ``rollserve up --engine-model transformers`` serves it: CUDA where there is one, with the engine log on.
3. Sessions of some turns each run at once, half over Messages, half over Chat, streamed, for ``--limit-s`` at most.
4. Exactness: every turn that a client saw is trained once, with the ids and log probs of the engine log, behind a prompt that
   continues the turn before; every ledger adds up; some sessions are scored again by a plain float32 pass over their ids.
5. Tokens/s, times, the adapter's CPU time and the GPU's memory, as a table and JSON.

It exits with 1 if a turn is lost or inexact, a request failed, nothing was scored, a log prob is off by more than the tolerance
(1e-3 nats in float32), or the verification failed otherwise: a sample that cannot be read, a negative control not caught.
In bfloat16 the plain pass rounds otherwise than the engine, and the tolerance is a bound on gross errors only. It is wider than
a negative control's offset (0.01) there, so that the controls of ``rollserve verify`` are told, not judged.

On a host without a network, whose Python 3.12 has torch, transformers, aiohttp, grpcio, tokenizers and the like of its own, bring
what it lacks, and a tokenizer's folder (``--tokenizer``). As wheels that is 73 MB, more than many borrowed hosts take (64 MiB), as
what Python 3.12 needs of them 52 MB at most:

    pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \\
        --platform manylinux_2_35_x86_64 --platform manylinux_2_31_x86_64 --platform manylinux_2_28_x86_64 \\
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d wheels \\
        nvidia-pytriton==0.7.0 transformers==5.24.0 tritonclient==2.73.0 orjson 'llguidance>=1.9,<2' backports.zstd hpack ml_dtypes
    python3.12 -m pip install --no-index --no-deps --no-compile --target site wheels/*.whl
    find site/pytriton/tritonserver/python_backend_stubs -mindepth 1 -maxdepth 1 ! -name 3.12 -exec rm -r {} +
    tar -C site -cJf site.tar.xz .                      keeps executable bits; a copy file by file has to, too

There, unpack it and name the folder in a file of the interpreter's own ``site-packages``. ``PYTHONPATH`` is not enough: the process
that Triton's Python backend runs the model in ignores it.

    mkdir site && tar -C site -xJf site.tar.xz
    echo $PWD/site > $(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/rollserve.pth
    PYTHONPATH=$PWD python3 -m loadtest.gpu_check --tokenizer DIR

The Triton wheel needs that interpreter's ``libpython3.12.so.1.0`` (``rollserve doctor`` says whether it is there). Rehearsed so,
``--quick``, with Python 3.12.1 and torch 2.14.1 on a CPU; not run on a GPU yet.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from engine.assets import demo_model_dir
from engine.verify import verify_samples
from engine.verify_report import CONTROL_OFFSET, NOT_CAUGHT, VerifyReport
from engine.verify_report import render as render_verification
from loadtest.engine_log import EngineLog
from loadtest.figures import Figure, Measured, percentile
from loadtest.gpu_checkpoint import Shape, make_checkpoint
from loadtest.gpu_sessions import Held, Plan, finish_sessions, hold_sessions
from loadtest.judge import Findings, judge, judge_without_log
from loadtest.program import Options, run_benchmark, say
from loadtest.system import real_system

TOLERANCES = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1}
"""Nats. bfloat16 has 8 bits: logits of a few units round by hundredths, and the layers before them add to it."""
QUICK = {"layers": 2, "hidden": 64, "sessions": 4, "turns": 2, "max_tokens": 8, "dtype": "float32", "limit_s": 60.0}
GPU_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Run:
    """What happened between the first request and the last reply. ``gpu_mib`` is the most that was in use; None without a GPU."""

    sessions: list[Held]
    seconds: float
    cpu_s: float
    gpu_mib: float | None


async def run(model: Path, options: Options, engine_log: Path) -> Run:
    """Raises: SystemFailed, if the server does not start."""
    plan = Plan(options.sessions, options.turns, options.max_tokens, options.limit_s)
    settings = [f"max_seq_len={options.max_seq_len}", f"dtype={options.dtype}", *options.engine_setting]
    arguments = [part for setting in settings for part in ("--engine-setting", setting)]
    async with real_system(model, engine_log, *arguments, start_s=options.start_s) as server, _gpu_memory() as used:
        say(f"{plan.sessions} sessions of {plan.turns} turns")
        cpu_s, began = server.cpu_s(), time.monotonic()
        sessions = await hold_sessions(server.url, plan)
        seconds, cpu_s = time.monotonic() - began, server.cpu_s() - cpu_s
        await finish_sessions(server.url, sessions)
    return Run(sessions, seconds, cpu_s, max(used, default=None))


@asynccontextmanager
async def _gpu_memory() -> AsyncIterator[list[float]]:
    """MiB in use on the first GPU, read once a second; stays empty where there is no nvidia-smi."""
    used: list[float] = []
    if shutil.which("nvidia-smi") is None:
        yield used
        return
    task = asyncio.create_task(_poll_gpu(used))
    try:
        yield used
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _poll_gpu(used: list[float]) -> None:
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    while True:
        told = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        with contextlib.suppress(ValueError, IndexError):
            used.append(float(told.stdout.splitlines()[0]))
        await asyncio.sleep(GPU_POLL_S)


def judge_run(run: Run, engine_log: Path) -> Findings:
    """Against the engine log, and by each session's own ledger; what both find wrong counts once.

    What clients read is not compared: random weights sample half characters, special tokens and halves of tool calls.
    """
    log, found = EngineLog(engine_log), Findings()
    for held in run.sessions:
        if not held.export:
            lost = max(1, len(held.seen))
            found.add(Findings(1, len(held.seen), lost, 0, [f"{held.sid}: could not be finished"]))
            continue
        export = json.loads(held.export)
        by_log = judge(held.sid, held.seen, export, log.of(held.sid), says=None)
        by_ledger = judge_without_log(held.sid, held.seen, export)
        found.add(by_log if by_log.notes else by_ledger)
    return found


def score(run: Run, model: Path, sessions: int, tolerance: float) -> VerifyReport:
    """The samples of sessions taken evenly from all, scored again."""
    exported = [held for held in run.sessions if held.export]
    chosen = exported[:: max(1, len(exported) // max(1, sessions))][:sessions]
    samples: list[dict[str, Any]] = [sample for held in chosen for sample in orjson.loads(held.export)["samples"]]
    return verify_samples(samples, model, tolerance)


def figures(run: Run, found: Findings, report: VerifyReport) -> list[Figure]:
    """Those with a goal decide."""
    turns = [turn for held in run.sessions for turn in held.turns]
    ended = [turn for turn in turns if turn.error is None and not turn.left]
    tokens = sum(turn.output_tokens for turn in ended)
    return [
        Figure("lost turns", found.lost, "turns", 0),
        Figure("inexact turns", found.inexact, "turns", 0),
        Figure("failed requests", sum(turn.error is not None for turn in turns), "requests", 0),
        Figure("runs without a whole turn", 0 if ended else 1, "runs", 0),
        Figure("runs without a scored token", 0 if report.trained_tokens else 1, "runs", 0),
        Figure("verification failures", len(judged_failures(report)), "failures", 0),
        Figure("largest log prob difference", report.max_difference, "nats", report.tolerance),
        Figure("mean log prob difference", report.differences.all.mean, "nats"),
        Figure("scored tokens", report.trained_tokens, "tokens"),
        Figure("turns cut by the time limit", sum(turn.left for turn in turns), "turns"),
        Figure("turns", len(ended), "turns"),
        Figure("throughput", tokens / run.seconds, "tokens/s"),
        *_times("time to first token", [turn.ttft_ms for turn in ended if turn.pieces]),
        *_times("turn", [turn.turn_ms for turn in ended]),
        Figure("adapter CPU per turn", run.cpu_s * 1e3 / max(1, len(ended)), "ms"),
        Figure("adapter CPU per token", run.cpu_s * 1e6 / max(1, tokens), "us"),
        *([] if run.gpu_mib is None else [Figure("GPU memory", run.gpu_mib, "MiB")]),
    ]


def judged_failures(report: VerifyReport) -> list[str]:
    """Of the verification. With a tolerance as wide as their offset, controls cannot be caught, and say nothing."""
    judges_controls = report.tolerance < CONTROL_OFFSET
    return [failure for failure in report.failures if judges_controls or not failure.startswith(NOT_CAUGHT)]


def _times(name: str, values: Sequence[float]) -> list[Figure]:
    return [Figure(f"{name} p{percent}", percentile(values, percent), "ms") for percent in (50, 99) if values]


def measure(options: Options) -> Measured:
    if options.quick:
        vars(options).update(QUICK)
    tolerance = TOLERANCES[options.dtype] if options.tolerance is None else options.tolerance
    with tempfile.TemporaryDirectory(prefix="rollserve-gpu-") as name:
        model, engine_log = Path(name) / "model", Path(name) / "engine.jsonl"
        shape = Shape(options.layers, options.hidden, options.max_seq_len, options.dtype)
        parameters = make_checkpoint(model, options.tokenizer or demo_model_dir(), shape)
        say(f"made a model of {parameters / 1e9:.2f} billion parameters")
        ran = asyncio.run(run(model, options, engine_log))
        say(f"{ran.seconds:.1f} s; judging")
        found = judge_run(ran, engine_log)
        report = score(ran, model, options.score, tolerance)
    errors = [f"{held.sid}: {turn.error}" for held in ran.sessions for turn in held.turns if turn.error]
    text = "\n".join([*found.notes[:20], *errors[:20], render_verification(report)])
    return Measured(figures(ran, found, report), _details(parameters, options, report), text)


def _details(parameters: int, options: Options, report: VerifyReport) -> dict[str, Any]:
    import torch
    import transformers

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "parameters": parameters,
        "device": device,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "controls": [str(control) for control in report.controls],
        "verification failures": list(report.failures),
        "options": {
            name: value for name, value in vars(options).items() if isinstance(value, int | float | str | list)
        },
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sessions", type=int, default=256, help="At once (default: %(default)s).")
    parser.add_argument("--turns", type=int, default=3, help="Of each session (default: %(default)s).")
    parser.add_argument("--max-tokens", type=int, default=128, help="Of a reply (default: %(default)s).")
    parser.add_argument("--layers", type=int, default=22, help="Default: %(default)s.")
    parser.add_argument("--hidden", type=int, default=2048, help="A multiple of 64 (default: %(default)s).")
    parser.add_argument("--dtype", choices=TOLERANCES, default="bfloat16", help="Default: %(default)s.")
    parser.add_argument("--max-seq-len", type=int, default=4096, help="Tokens (default: %(default)s).")
    parser.add_argument("--tokenizer", type=Path, help="Folder with tokenizer.json (default: the demo model's).")
    parser.add_argument("--engine-setting", action="append", default=[], metavar="NAME=VALUE", help="May be repeated.")
    parser.add_argument("--score", type=int, default=4, help="Sessions that are scored again (default: %(default)s).")
    parser.add_argument("--tolerance", type=float, help=f"Nats (default: by dtype, {TOLERANCES}).")
    parser.add_argument("--limit-s", type=float, default=240.0, help="For all turns (default: %(default)s).")
    parser.add_argument("--start-s", type=float, default=180.0, help="For the server's start (default: %(default)s).")


def main(argv: Sequence[str] | None = None) -> int:
    result = run_benchmark("gpu_check", __doc__, measure, argv, add_options, module="loadtest.gpu_check")
    return 1 if any(figure.met is False for figure in result.measured.figures) else 0


if __name__ == "__main__":
    sys.exit(main())
