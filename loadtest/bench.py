"""All benchmarks, one after the other, each in a process of its own.

    python -m loadtest.bench [--only NAME] [--quick] [--json FILE] [--store DIR]

Each prints its table, with the goals and the last run beside the figures; at the end come the goals that were missed. ``--json``
writes all results into one file. It exits with 1 if a benchmark could not be carried out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from loadtest.program import STORE

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Of all benchmarks: those in this folder."""
    return sorted(file.stem.removeprefix("bench_") for file in FOLDER.glob("bench_*.py"))


def run(name: str, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """The result of one benchmark; None if it failed."""
    with tempfile.TemporaryDirectory(prefix="rollserve-bench-") as folder:
        file = Path(folder) / "result.json"
        options = ["--json", str(file), "--store", str(arguments.store), *(["--quick"] if arguments.quick else [])]
        ended = subprocess.run([sys.executable, "-m", f"loadtest.bench_{name}", *options], check=False)
        return orjson.loads(file.read_bytes()) if ended.returncode == 0 and file.exists() else None


def missed(results: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each figure that is beyond its goal."""
    return [
        f"{result['name']}: {figure['name']} is {figure['value']:.4g} {figure['unit']}, the goal is <= {figure['goal']:g}"
        for result in results
        for figure in result["figures"]
        if figure["met"] is False
    ]


def summary(results: Sequence[dict[str, Any]], failed: Sequence[str]) -> str:
    goals = [figure["met"] for result in results for figure in result["figures"] if figure["met"] is not None]
    head = f"{sum(goals)} of {len(goals)} goals met"
    return "\n".join([head, *missed(results), *(f"{name}: FAILED" for name in failed)])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=names(), action="append", help="Run this one; may be repeated.")
    parser.add_argument("--quick", action="store_true", help="Only show that they work; the figures mean little.")
    parser.add_argument("--json", type=Path, help="Write all results here.")
    parser.add_argument("--store", type=Path, default=STORE, help="Folder of the last results (default: %(default)s).")
    arguments = parser.parse_args(argv)
    chosen = arguments.only or names()
    results, failed = [], []
    for number, name in enumerate(chosen, 1):
        print(f"\n[{number}/{len(chosen)}] {name}", flush=True)
        began = time.perf_counter()
        result = run(name, arguments)
        print(f"  {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        if result is None:
            failed.append(name)
        else:
            results.append(result)
    print(f"\n{summary(results, failed)}")
    if arguments.json is not None:
        arguments.json.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
