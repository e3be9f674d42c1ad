"""What an agent CLI is to these tests, and how one is run: without a person, in an empty home and a folder of its own, kept off the
internet. ``clis`` lists them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clients.install import client_bin
from tests.conftest import MARK_VARIABLE

LIMIT_S = 180.0
"""Far more than any run takes; reaching it fails the test."""

NO_INTERNET = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1,localhost"}
"""Port 9 (discard) is dead everywhere. What the CLIs look up there (updates, telemetry, catalogues) they do without."""

Call = Mapping[str, Any]
"""A tool call as the model writes it: ``name`` and ``arguments``."""


@dataclass(frozen=True, slots=True)
class Tools:
    """How the CLI's own tools are called. ``agent`` starts a sub-agent with a prompt.

    A sub-agent in the background (``agent_reports_later``) gives no result to the call, but a message when it is done.
    ``meanwhile`` is a call with which the main agent passes the time, where its end would be the sub-agent's too. ``report`` is the
    call that ends a sub-agent, where a plain answer does not.
    """

    write: Callable[[Path, str], Call]
    run: Callable[[str], Call]
    read: Callable[[Path], Call]
    agent: Callable[[str], Call]
    agent_reports_later: bool = False
    meanwhile: Call | None = None
    report: Callable[[str], Call] | None = None


@dataclass(frozen=True, slots=True)
class Cli:
    """``command`` and ``resume`` are followed by the prompt. ``files`` are under the home: path -> text. In them and in ``env``,
    ``{url}`` stands for the server's URL (with ``/s/SID``, where that names the session), ``{key}`` for the API key, ``{home}`` for
    the home."""

    name: str
    protocol: str
    prompt_tokens: int
    """About what the first prompt takes, in Qwen3's tokens."""
    command: tuple[str, ...]
    resume: tuple[str, ...]
    tools: Tools
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    session_name: str = ""
    """How it names its session by itself; empty if only its API key does."""
    at_overflow: str = ""
    """What it says when it gives up because its prompt is past the context; empty if it goes on with a summary."""
    branches: Mapping[str, int] = field(default_factory=dict)
    """Scenario -> into how many branches its main loop may fall, where that is not one: the CLI itself rewrites its history."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Place:
    """Where one agent lives: ``home`` and ``work`` are its own folders."""

    root: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def work(self) -> Path:
        return self.root / "work"


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that ended by itself. ``said`` is its standard output."""

    status: int
    said: str
    errors: str


async def start(cli: Cli, place: Place, url: str, prompt: str, *, resume: bool = False, key: str = "key") -> Ended:
    """Run the CLI to its end. Nothing of it is left when this returns. Raises: TimeoutError, with what it said."""
    fill = _filler(place.home, url, key)
    for folder in (place.home, place.work):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in cli.files.items():
        file = place.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(fill(text))
    process = await asyncio.create_subprocess_exec(
        *(cli.resume if resume else cli.command),
        prompt,
        cwd=place.work,
        env=_environment(place.home) | {name: fill(value) for name, value in cli.env.items()},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    return await _ended(process)


async def _ended(process: asyncio.subprocess.Process) -> Ended:
    output: list[bytes] = [b"", b""]

    async def collect(index: int, stream: asyncio.StreamReader) -> None:
        while piece := await stream.read(65536):
            output[index] += piece

    assert process.stdout is not None and process.stderr is not None
    try:
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(collect(0, process.stdout), collect(1, process.stderr))
            status = await process.wait()
    except TimeoutError as error:
        raise TimeoutError(f"still running after {LIMIT_S:g} s; it said {output}") from error
    finally:
        with suppress(ProcessLookupError):  # its group may outlive it
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return Ended(status, output[0].decode(errors="replace"), output[1].decode(errors="replace"))


def _environment(home: Path) -> dict[str, str]:
    """Nothing of ours but the path, and the mark by which left-over processes are found."""
    return {
        "PATH": f"{client_bin()}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        MARK_VARIABLE: os.environ.get(MARK_VARIABLE, ""),
        **NO_INTERNET,
    }


def _filler(home: Path, url: str, key: str) -> Callable[[str], str]:
    return lambda text: text.replace("{home}", str(home)).replace("{url}", url).replace("{key}", key)


def call(name: str, **arguments: Any) -> Call:
    return {"name": name, "arguments": arguments}
