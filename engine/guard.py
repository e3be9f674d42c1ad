"""Run one command so that nothing of it outlives its owner.

    python -I -S guard.py GRACE_S SHM_PREFIX COMMAND...

tritonserver starts a stub process per Python model. Whoever starts a server may be killed at any moment, and then both
must go. The guard is the process in between: it starts the command in a process group of its own, and prints its pid on
stdout. It ends the group when its stdin reaches end of file, which the kernel brings about however the owner ends, or
on SIGTERM.

    owner closes stdin, or dies    SIGTERM to the command, GRACE_S seconds, then SIGKILL to its whole group
    owner writes KILL_AT_ONCE      SIGKILL to its whole group
    the command ends by itself     SIGKILL to what is left of its group
    the guard itself is killed     the kernel kills the command (PR_SET_PDEATHSIG); a stub ends when its server is gone

Afterwards shared memory that the group left behind is removed. The exit status is the command's (128 + n for signal n).
Only the standard library is imported: the guard costs some milliseconds and megabytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

KILL_AT_ONCE = b"k"

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_NOT_STARTED = 127  # the shell's status for a command that cannot be run


def main(arguments: list[str]) -> int:
    grace_s, shm_prefix, *command = arguments
    stop_read, stop_write = os.pipe()
    signal.signal(signal.SIGTERM, lambda *_: os.write(stop_write, b"\0"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = _start(command)
    except OSError as error:
        print(f"cannot start {command[0]}: {error}", file=sys.stderr)
        return _NOT_STARTED
    print(process.pid, flush=True)
    exited = os.pidfd_open(process.pid)
    _wait_until_readable([sys.stdin.fileno(), stop_read, exited])
    if not _readable(exited, 0) and not _told_to_kill():
        process.send_signal(signal.SIGTERM)
        _readable(exited, float(grace_s))
    _kill_group(process.pid)
    status = process.wait()
    _reap_group(process.pid)
    _remove_shared_memory(shm_prefix)
    return status if status >= 0 else 128 - status


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def die_with_the_guard() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    # The guard has one thread, so running code between fork and exec is safe here. The command writes where our stderr
    # goes.
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=sys.stderr,
        process_group=0,
        preexec_fn=die_with_the_guard,
    )


def _told_to_kill() -> bool:
    return _readable(sys.stdin.fileno(), 0) and os.read(sys.stdin.fileno(), 1) == KILL_AT_ONCE


def _wait_until_readable(descriptors: list[int]) -> None:
    """Until one of the descriptors has data, ended, or (a pidfd) belongs to a process that has ended."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    poll.poll()


def _readable(descriptor: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def _kill_group(leader: int) -> None:
    """The leader is not reaped yet, so its number cannot have been given to another group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _reap_group(leader: int) -> None:
    """Until all of it has ended. We inherit the leader's children; in a container nobody else may collect them."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-leader, 0)


def _remove_shared_memory(prefix: str) -> None:
    for region in Path("/dev/shm").glob(f"{prefix}*"):
        region.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
