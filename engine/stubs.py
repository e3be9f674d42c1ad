"""The stub processes in which a tritonserver runs its Python models, and their ends.

When a stub dies, Triton (seen with 2.51 and a decoupled model) fails requests that it has not yet handed over, leaves
those that the model was answering without an end, keeps calling the model ready, and never starts the stub again. So
whoever runs the server has to watch its stubs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

_NAME = "triton_python_b"
"""``triton_python_backend_stub`` as the kernel keeps a process's name: its first 15 characters."""


def stub_processes(server_pid: int) -> list[int]:
    """The pids of the stubs that the server has started and that have not ended."""
    return [pid for pid, name, parent in _processes() if parent == server_pid and name == _NAME]


async def any_ended(pids: Iterable[int]) -> None:
    """Until one of the processes has ended; never, if there are none."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    with ExitStack() as cleanup:
        for pid in pids:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                return
            cleanup.callback(os.close, descriptor)
            loop.add_reader(descriptor, ended.set)
            cleanup.callback(loop.remove_reader, descriptor)
        await ended.wait()


def _processes() -> Iterator[tuple[int, str, int]]:
    """Pid, name and parent of every live process; see proc(5) for ``stat``: ``pid (name) state ppid ...``."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        name, _, rest = stat.partition("(")[2].rpartition(")")
        state, parent = rest.split()[:2]
        if state != "Z":
            yield int(entry.name), name, int(parent)
