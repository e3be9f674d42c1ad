"""``rollserve loadtest``: the load test is a program of its own, ``python -m loadtest``; nothing in this package imports it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import click

OWN_MODEL = ("--url", "--tokenizer", "--help", "-h")
"""With one of these the demo model's tokenizer is not needed."""


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def loadtest(arguments: tuple[str, ...]) -> None:
    """Let agents work on a server for minutes, judge every session, write a report; exits 0 if the verdict is a pass.

    Needs the extra `loadtest`. `rollserve loadtest --help` lists its options.
    """
    sys.exit(subprocess.run([sys.executable, "-m", "loadtest", *complete(arguments)], check=False).returncode)


def complete(arguments: Sequence[str]) -> list[str]:
    """With the demo model's tokenizer, where none is named and one is needed."""
    if any(word.partition("=")[0] in OWN_MODEL for word in arguments):
        return list(arguments)
    from engine.assets import demo_model_dir

    return [*arguments, "--tokenizer", str(demo_model_dir())]
