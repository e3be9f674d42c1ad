"""``rollserve top``."""

from __future__ import annotations

import contextlib

import click
from rich.console import Console

from adapter.finite import Finite
from adapter.remote import DEFAULT_URL

PLAIN_WIDTH = 120
"""Characters of a line where there is no terminal."""


@click.command()
@click.option("--url", default=DEFAULT_URL, envvar="ROLLSERVE_URL", show_default=True, help="The running server.")
@click.option("--interval", default=2.0, type=Finite(0.05, 3600), show_default=True, help="Seconds.")
@click.option("--once", is_flag=True, help="Print one picture as plain text.")
def top(url: str, interval: float, once: bool) -> None:
    """Watch a running server: turns, tokens, latencies, sessions, journal, workers, engines. Ends with q or Ctrl-C."""
    from adapter.top_view import show, show_once

    if once:
        show_once(Console(force_terminal=False, width=PLAIN_WIDTH), url, interval)
        return
    with contextlib.suppress(KeyboardInterrupt):
        show(Console(), url, interval)
