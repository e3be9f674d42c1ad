"""A benchmark as a program: its options, its progress, its table, its file.

    python -m loadtest.bench_NAME [--quick] [--json FILE] [--store DIR] [options of its own]

Progress goes to standard error, the table to standard output. It exits with 0 whether or not goals are met: timings on a machine
that does other work are noise; only a benchmark that could not be carried out is an error.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson

from loadtest.figures import Measured, Result, Store, table

STORE = Path(".bench")
"""Where the last results are, seen from where the command is run; git ignores it."""

Options = argparse.Namespace
AddOptions = Callable[[argparse.ArgumentParser], None]


def no_options(parser: argparse.ArgumentParser) -> None:
    """Adds none."""


def run_benchmark(
    name: str,
    doc: str | None,
    measure: Callable[[Options], Measured],
    argv: Sequence[str] | None = None,
    add_options: AddOptions = no_options,
    module: str | None = None,
) -> Result:
    """Parse the command line, measure, print, compare with the last run, store. ``doc`` is the benchmark's module docstring.

    ``module`` is where it is started, if not ``loadtest.bench_NAME``.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Only show that it works; the figures mean little.")
    parser.add_argument("--json", type=Path, help="Write the result here, too.")
    parser.add_argument("--store", type=Path, default=STORE, help="Folder of the last results (default: %(default)s).")
    add_options(parser)
    arguments = parser.parse_args(argv)
    began = time.perf_counter()
    measured = measure(arguments)
    command = shlex.join(
        ["python", "-m", module or f"loadtest.bench_{name}", *(sys.argv[1:] if argv is None else argv)]
    )
    result = Result(name, command, arguments.quick, time.perf_counter() - began, measured)
    _conclude(result, Store(arguments.store), arguments.json)
    return result


def _conclude(result: Result, store: Store, file: Path | None) -> None:
    if result.measured.text:
        print(result.measured.text)
    document, last = result.document(), store.last(result.name, result.quick)
    print(table(result.measured.figures, last))
    where = document["machine"]
    print(
        f"{where['cpu']}, {where['cores']} cores, load {where['load_average']}, loop {where['loop_ms']} ms", flush=True
    )
    store.keep(document)
    if file is not None:
        file.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))


def say(line: str) -> None:
    """Progress."""
    print(f"  {line}", file=sys.stderr, flush=True)
