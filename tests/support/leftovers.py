"""Processes that outlive what started them, found by a mark in their environment.

A mark is inherited by every process that is started with the environment of its parent, and it stays readable whoever
became the process's parent since. Linux only.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

# Python's own helper of multiprocessing; it ends with the interpreter.
EXPECTED = "multiprocessing.resource_tracker"


def left_running(mark: str, grace: float) -> dict[int, str]:
    """Processes with ``mark`` (``NAME=value``) that do not end within ``grace`` seconds: pid -> command line.

    The calling process is not counted.
    """
    wait_for_end(list(_marked(mark)), grace)
    return _marked(mark)


def wait_for_end(pids: list[int], seconds: float) -> None:
    """Return when none of ``pids`` runs any more, after ``seconds`` at the latest."""
    deadline = time.monotonic() + seconds
    with ExitStack() as stack:
        ended = select.poll()
        running = set()
        for pid in pids:
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                stack.callback(os.close, descriptor)
                ended.register(descriptor, select.POLLIN)
                running.add(descriptor)
        while running and (remaining := deadline - time.monotonic()) > 0:
            for descriptor, _ in ended.poll(remaining * 1000):
                ended.unregister(descriptor)
                running.remove(descriptor)


def _marked(mark: str) -> dict[int, str]:
    return dict(_processes_with(mark.encode()))


def _processes_with(mark: bytes) -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        if mark in environment and pid != os.getpid() and EXPECTED not in command:
            yield pid, command
