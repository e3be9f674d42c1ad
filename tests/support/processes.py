"""Whether processes have ended. One that nobody has collected yet (a zombie) has: in a container pid 1 may never do it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.support.leftovers import wait_for_end

LIMIT_S = 20.0
"""Far more than any end here takes."""


def running(pids: Iterable[int]) -> list[int]:
    """Those of ``pids`` that have not ended."""
    states = {}
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            states[pid] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return [pid for pid, state in states.items() if state != "Z"]


def assert_gone(pids: list[int]) -> None:
    """They end, if they have not ended yet."""
    wait_for_end(pids, LIMIT_S)
    assert running(pids) == []
