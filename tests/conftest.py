"""What holds for every test run: nothing is fetched from a model hub, and no process outlives the run.

Processes that are still there when the run ends fail it, are named in the summary, and are killed. Where several processes share
the tests (``pytest -n 2``), each looks after what it started, and the first one tells of all.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import uuid
from contextlib import suppress
from typing import Any

import hypothesis
import pytest

from tests.support.leftovers import left_running
from tests.support.tried import tried

MARK_VARIABLE = "TEST_RUN_OF_ROLLSERVE"
GRACE_SECONDS = 10.0
"""A server's children may end a moment after the server that was waited for."""

WORKERS_LEFTOVERS = "leftovers"
LEFTOVERS = pytest.StashKey[dict[int, str]]()
STATE_FOLDER = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    # A deadline would make slow machines fail tests that say nothing about time.
    hypothesis.settings.register_profile("rollserve", deadline=None)
    hypothesis.settings.load_profile("rollserve")
    os.environ["HF_HUB_OFFLINE"] = "1"
    # Servers that are started from the command line keep their journal here, not in the user's folder.
    config.stash[STATE_FOLDER] = tempfile.mkdtemp(prefix="rollserve-test-state-")
    os.environ["XDG_STATE_HOME"] = config.stash[STATE_FOLDER]
    os.environ[MARK_VARIABLE] = uuid.uuid4().hex


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    shutil.rmtree(session.config.stash[STATE_FOLDER], ignore_errors=True)
    leftovers = left_running(f"{MARK_VARIABLE}={os.environ[MARK_VARIABLE]}", GRACE_SECONDS)
    for pid in leftovers:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    workeroutput = getattr(session.config, "workeroutput", None)
    if workeroutput is not None:
        workeroutput[WORKERS_LEFTOVERS] = list(leftovers.items())
    found = session.config.stash.setdefault(LEFTOVERS, {})
    found.update(leftovers)
    if found:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """One of the processes that shared the tests has ended, and says what it found (pytest-xdist)."""
    found = node.config.stash.setdefault(LEFTOVERS, {})
    found.update(dict(getattr(node, "workeroutput", {}).get(WORKERS_LEFTOVERS, [])))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in tried(terminalreporter.stats):
        terminalreporter.write_line(line)
    for pid, command in config.stash.get(LEFTOVERS, {}).items():
        terminalreporter.write_line(f"FAILED: process {pid} was left running: {command}", red=True)
