"""The guard: whatever ends, and however, nothing of the command is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.guard import KILL_AT_ONCE
from tests.support.processes import LIMIT_S, assert_gone

GUARD = Path(__file__).parents[2] / "engine" / "guard.py"
LONG_S = "600"

SLEEPER = "sleep 300 & echo $! > CHILD; echo ready; wait"
"""A command with a child, as a server with its stub."""
STUBBORN = "trap '' TERM; " + SLEEPER + "; wait"


@dataclass
class Guarded:
    """A guard with its command running. ``pid`` is the command's, ``child`` its child's."""

    guard: subprocess.Popen[bytes]
    pid: int
    child: int
    pids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.pids = [self.guard.pid, self.pid, self.child]

    def assert_all_gone(self) -> None:
        self.guard.wait(LIMIT_S)
        assert_gone(self.pids)


class Starter:
    """Starts guards in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.guards: list[subprocess.Popen[bytes]] = []

    def popen(self, script: str, grace_s: str = LONG_S, prefix: str = "rollserve-test-none") -> subprocess.Popen[bytes]:
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), grace_s, prefix, "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
        )
        self.guards.append(guard)
        return guard

    def start(self, script: str, grace_s: str = LONG_S) -> Guarded:
        """With one of the scripts above; returns when its child runs."""
        guard = self.popen(script, grace_s)
        assert guard.stdout is not None and guard.stderr is not None
        pid = int(guard.stdout.readline())
        assert guard.stderr.readline() == b"ready\n"
        return Guarded(guard, pid, int((self.folder / "CHILD").read_text()))


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(tmp_path)
    yield starter
    for guard in starter.guards:
        guard.kill()
        guard.communicate()


def close_stdin(guard: subprocess.Popen[bytes]) -> None:
    assert guard.stdin is not None
    guard.stdin.close()
    guard.stdin = None


def test_the_end_of_its_input_ends_the_command_and_its_children(starter: Starter) -> None:
    guarded = starter.start(SLEEPER)
    close_stdin(guarded.guard)
    guarded.assert_all_gone()
    assert guarded.guard.returncode == 128 + signal.SIGTERM


def test_a_command_that_ignores_the_request_is_killed_after_its_grace(starter: Starter) -> None:
    guarded = starter.start(STUBBORN, grace_s="0.1")
    close_stdin(guarded.guard)
    guarded.assert_all_gone()
    assert guarded.guard.returncode == 128 + signal.SIGKILL


def test_kill_at_once_does_not_wait_for_the_grace(starter: Starter) -> None:
    guarded = starter.start(STUBBORN)
    assert guarded.guard.stdin is not None
    guarded.guard.stdin.write(KILL_AT_ONCE)
    guarded.guard.stdin.flush()
    guarded.assert_all_gone()


def test_sigterm_to_the_guard_is_a_request_to_stop(starter: Starter) -> None:
    guarded = starter.start(SLEEPER)
    guarded.guard.terminate()
    guarded.assert_all_gone()


def test_ctrl_c_does_not_reach_the_command(starter: Starter) -> None:
    guarded = starter.start(SLEEPER)
    guarded.guard.send_signal(signal.SIGINT)
    assert guarded.guard.poll() is None
    close_stdin(guarded.guard)
    guarded.assert_all_gone()
    assert guarded.guard.returncode == 128 + signal.SIGTERM


def test_a_command_that_ends_takes_its_children_along(starter: Starter) -> None:
    guarded = starter.start(SLEEPER)
    os.kill(guarded.pid, signal.SIGKILL)
    guarded.assert_all_gone()
    assert not Path(f"/proc/{guarded.child}").exists(), "the guard collects it, or it stays a zombie in a container"
    assert guarded.guard.returncode == 128 + signal.SIGKILL


def test_the_kernel_ends_the_command_when_the_guard_is_killed(starter: Starter) -> None:
    guarded = starter.start("echo $$ > CHILD; echo ready; exec sleep 300")
    guarded.guard.kill()
    guarded.assert_all_gone()


def test_the_exit_status_is_the_commands(starter: Starter) -> None:
    assert starter.popen("exit 7").wait(LIMIT_S) == 7


def test_a_command_that_cannot_be_started_says_so(starter: Starter) -> None:
    guard = subprocess.run(
        [sys.executable, "-I", "-S", str(GUARD), "1", "none", "/nowhere/tritonserver"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
    )
    assert guard.returncode == 127
    assert b"cannot start /nowhere/tritonserver" in guard.stderr
    assert guard.stdout == b""


def test_the_owners_death_is_the_end_of_its_input(starter: Starter) -> None:
    """SIGKILL to the owner: it cannot clean up, the kernel closes its end of the pipe."""
    command = [sys.executable, "-I", "-S", str(GUARD), LONG_S, "none", "sh", "-c", SLEEPER]
    owner_code = (
        "import subprocess, sys, time\n"
        f"guard = subprocess.Popen({command!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)\n"
        "sys.stdout.buffer.write(b'%d ' % guard.pid + guard.stdout.readline())\n"
        "sys.stdout.flush()\n"
        "time.sleep(300)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", owner_code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=starter.folder
    )
    assert owner.stdout is not None and owner.stderr is not None
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    assert owner.stderr.readline() == b"ready\n"
    pids.append(int((starter.folder / "CHILD").read_text()))
    owner.kill()
    owner.communicate()
    assert_gone(pids)


def test_shared_memory_of_the_command_is_removed(starter: Starter) -> None:
    prefix = f"rollserve-test-{os.getpid()}"
    region, other = Path(f"/dev/shm/{prefix}-region"), Path(f"/dev/shm/other-{prefix}")
    other.touch()
    try:
        guard = starter.popen(f"echo > {region}; test -e {region}", prefix=prefix)
        assert guard.wait(LIMIT_S) == 0
        assert not region.exists()
        assert other.exists()
    finally:
        other.unlink()
        region.unlink(missing_ok=True)
