"""``rollserve top``: a picture of a running server, drawn anew every few moments until q or Ctrl-C; or one, as plain text."""

from __future__ import annotations

import json
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from adapter.remote import fetch
from adapter.top import EndpointRow, Frame, Scrape, WorkerRow, frame

_DIM, _BAD = "dim", "bold red"


def scrape(url: str) -> Scrape:
    """Raises: click.ClickException."""
    metrics = fetch(url, "/metrics")
    status, ready = fetch(url, "/readyz", accept=(503,))
    try:
        return Scrape.read(time.monotonic(), metrics[1].decode(), json.loads(ready))
    except (ValueError, AttributeError) as error:
        raise click.ClickException(f"what answers at {url} is no rollserve (GET /readyz: {status})") from error


def show_once(console: Console, url: str, interval_s: float) -> None:
    """Two scrapes, one picture."""
    before = scrape(url)
    time.sleep(interval_s)
    console.print(picture(url, frame(before, scrape(url))))


def show(console: Console, url: str, interval_s: float) -> None:
    """Until q or Ctrl-C. A server that goes away meanwhile is waited for."""
    before = scrape(url)
    seen = frame(before, before)
    with _keys() as pressed, Live(picture(url, seen), console=console, screen=True, auto_refresh=False) as live:
        while pressed(interval_s) != "q":
            try:
                now = scrape(url)
            except click.ClickException as error:
                live.update(Group(Text(error.message, style=_BAD), picture(url, seen)), refresh=True)
                continue
            before, seen = now, frame(before, now)
            live.update(picture(url, seen), refresh=True)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Waits for a key, so many seconds at most; where there is no keyboard it only waits."""
    if not sys.stdin.isatty():
        yield _wait
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> str:
        return sys.stdin.read(1) if select.select([sys.stdin], [], [], seconds)[0] else ""

    try:
        tty.setcbreak(terminal)
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _wait(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def picture(url: str, seen: Frame) -> RenderableType:
    return Group(
        Text(f"rollserve at {url}: {seen.status}" + (" (engine on hold)" if seen.on_hold else ""), style="bold"),
        _summary(seen),
        _workers(seen.workers),
        *([_endpoints(seen.endpoints)] if seen.endpoints else []),
        _line("turns ended", seen.outcomes),
        _line("histories", seen.reasons),
    )


def _summary(seen: Frame) -> Table:
    table = Table.grid(padding=(0, 3))
    cached = "-" if seen.cached_part is None else f"{100 * seen.cached_part:.0f} %"
    table.add_row(
        f"turns/s {seen.turns:.2f}",
        f"tokens/s {seen.output_tokens:.0f}",
        f"prompt tokens/s {seen.prompt_tokens:.0f}, {cached} cached",
        f"running {seen.running}, queued {seen.queued}, held {seen.held}",
    )
    table.add_row(
        f"first token {_pair(seen.first_token)}",
        f"per token {_pair(seen.inter_token)}",
        f"turn {_pair(seen.turn)}",
        "p50 / p99",
    )
    sessions = ", ".join(f"{count} {state}" for state, count in seen.sessions.items()) or "none"
    journal = f"{_size(seen.journal_bytes)}/s, sync p99 {_time(seen.sync_s)}"
    table.add_row(
        f"sessions {sessions}",
        f"journal {journal}",
        f"unsynced {_size(seen.unsynced_bytes)} for {_time(seen.unsynced_s)}",
        Text(f"journal errors {seen.journal_errors}", style=_BAD if seen.journal_errors else ""),
    )
    return table


def _workers(rows: Sequence[WorkerRow]) -> Table:
    table = _table("worker", "turns/s", "tokens/s", "running", "queued", "sessions", "memory", "cpu", "loop lag p99")
    for row in rows:
        if not row.up:
            table.add_row(row.name, Text("does not answer", style=_BAD))
            continue
        table.add_row(
            row.name,
            f"{row.turns:.2f}",
            f"{row.tokens:.0f}",
            str(row.running),
            str(row.queued),
            str(row.sessions),
            _size(row.memory_bytes),
            f"{100 * row.cpu:.0f} %",
            _time(row.lag_s),
        )
    return table


def _endpoints(rows: Sequence[EndpointRow]) -> Table:
    table = _table("endpoint", "model", "state", "running", "weights")
    for row in rows:
        state = "draining" if row.draining else "up" if row.up else "left alone" if row.broken else "down"
        version = "-" if row.weight_version is None else str(row.weight_version)
        style = "" if row.up else _BAD
        table.add_row(escape(row.address), escape(row.model), Text(state, style=style), str(row.live), version)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style=_DIM, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column)
    return table


def _line(title: str, counts: Mapping[str, int]) -> Text:
    listed = "   ".join(f"{name} {count}" for name, count in counts.items())
    return Text.assemble((f"{title}  ", _DIM), listed or "none yet")


def _pair(values: tuple[float | None, float | None]) -> str:
    return " / ".join(map(_time, values))


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
