"""The agent CLIs: how each is started without a person, pointed at a server, kept off the internet, and what its tools are called.

``Cli`` is data; ``start`` runs one with an empty home and a folder of its own. Measured with the versions of ``package.json``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shlex
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clients.install import client_bin
from tests.conftest import MARK_VARIABLE

MODEL = "rollserve"
LIMIT_S = 180.0
"""Far more than any run takes; reaching it fails the test."""

NO_INTERNET = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1,localhost"}
"""Port 9 (discard) is dead everywhere. What the CLIs look up there (updates, telemetry, catalogues) they do without."""

Call = Mapping[str, Any]
"""A tool call as the model writes it: ``name`` and ``arguments``."""


@dataclass(frozen=True, slots=True)
class Tools:
    """How the CLI's own tools are called. ``agent`` starts a sub-agent with a prompt; None where there is none.

    A sub-agent in the background (``agent_reports_later``) gives no result to the call, but a message when it is done.
    ``meanwhile`` is a call with which the main agent passes the time, where its end would be the sub-agent's too. ``report`` is the
    call that ends a sub-agent, where a plain answer does not.
    """

    write: Callable[[Path, str], Call]
    run: Callable[[str], Call]
    read: Callable[[Path], Call]
    agent: Callable[[str], Call] | None = None
    agent_reports_later: bool = False
    meanwhile: Call | None = None
    report: Callable[[str], Call] | None = None
    no_agent_because: str = ""


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


_CLAUDE = ("claude", "--dangerously-skip-permissions", "-p")
CLAUDE_ENV = {
    "ANTHROPIC_BASE_URL": "{url}",
    "ANTHROPIC_AUTH_TOKEN": "{key}",
    "ANTHROPIC_MODEL": MODEL,
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "IS_SANDBOX": "1",
}
CLAUDE = Cli(
    name="claude",
    prompt_tokens=11600,
    protocol="messages",
    command=_CLAUDE,
    resume=("claude", "--continue", *_CLAUDE[1:]),
    env=CLAUDE_ENV,
    session_name="[0-9a-f-]{36}",
    branches={"overflow": 2},
    tools=Tools(
        write=lambda path, content: call("Write", file_path=str(path), content=content),
        run=lambda command: call("Bash", command=command, description="Run a command"),
        read=lambda path: call("Read", file_path=str(path)),
        agent=lambda prompt: call(
            "Agent", description="Part of the task", prompt=prompt, subagent_type="general-purpose"
        ),
        agent_reports_later=True,
    ),
)

_OPENCODE_TOOLS = Tools(
    write=lambda path, content: call("write", filePath=str(path), content=content),
    run=lambda command: call("bash", command=command, description="Run a command"),
    read=lambda path: call("read", filePath=str(path)),
    agent=lambda prompt: call("task", description="Part of the task", prompt=prompt, subagent_type="general"),
)


def _opencode(protocol: str, package: str) -> Cli:
    model = {"limit": {"context": 131072, "output": 8192}}
    config = {
        "model": f"server/{MODEL}",
        "small_model": f"server/{MODEL}",
        "permission": {"*": "allow"},
        "provider": {
            "server": {
                "npm": package,
                "options": {"baseURL": "{url}/v1", "apiKey": "{key}"},
                "models": {MODEL: model},
            }
        },
    }
    return Cli(
        name=f"opencode-{protocol}",
        prompt_tokens=7300,
        protocol=protocol,
        command=("opencode", "run"),
        resume=("opencode", "run", "--continue"),
        env={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        files={".config/opencode/opencode.json": json.dumps(config)},
        tools=_OPENCODE_TOOLS,
        session_name="ses_.*",
        # It may keep the attempt that broke off, with a call without arguments, before the one that did not.
        branches={"cut-call": 2, "overflow": 2},
    )


OPENCODE_CHAT = _opencode("chat", "@ai-sdk/openai-compatible")
OPENCODE_MESSAGES = _opencode("messages", "@ai-sdk/anthropic")

_QWEN_TOOLS = Tools(
    write=lambda path, content: call("write_file", file_path=str(path), content=content),
    # It loses the output of a command that ends at once.
    run=lambda command: call("run_shell_command", command=f"{command}; sleep 1", is_background=False),
    read=lambda path: call("read_file", file_path=str(path)),
    agent=lambda prompt: call("agent", description="Part of the task", prompt=prompt, subagent_type="general-purpose"),
    agent_reports_later=True,
)


def _qwen(protocol: str, auth: str, env: Mapping[str, str]) -> Cli:
    return Cli(
        name=f"qwen-{protocol}",
        prompt_tokens=17100,
        protocol=protocol,
        command=("qwen", "-y", "-p"),
        resume=("qwen", "-y", "--continue", "-p"),
        env=env,
        files={".qwen/settings.json": json.dumps({"security": {"auth": {"selectedType": auth}}})},
        tools=_QWEN_TOOLS,
        # It makes one message of a reply that was cut off and its continuation, without its own words between them. When it
        # resumes, the reminder of the date leaves the first prompt. After a summary, its first message gets the list of
        # skills one turn late.
        branches={"cut-call": 2, "cut-text": 2, "resumed": 2, "overflow": 3},
    )


QWEN_CHAT = _qwen("chat", "openai", {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{key}", "OPENAI_MODEL": MODEL})
QWEN_MESSAGES = _qwen(
    "messages", "anthropic", {"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": "{key}", "ANTHROPIC_MODEL": MODEL}
)

_CODEX_FLAGS = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
_CODEX_CONFIG = f"""\
model = "{MODEL}"
model_provider = "server"

[model_providers.server]
name = "server"
base_url = "{{url}}/v1"
env_key = "SERVER_KEY"
wire_api = "responses"
"""
CODEX = Cli(
    name="codex",
    prompt_tokens=8700,
    protocol="responses",
    command=("codex", "exec", *_CODEX_FLAGS),
    resume=("codex", "exec", *_CODEX_FLAGS, "resume", "--last"),
    env={"SERVER_KEY": "{key}"},
    files={".codex/config.toml": _CODEX_CONFIG},
    session_name="[0-9a-f-]{36}",
    at_overflow="ran out of room in the model's context window",
    tools=Tools(
        write=lambda path, content: call("exec_command", cmd=f"printf %s {shlex.quote(content)} > {path}"),
        run=lambda command: call("exec_command", cmd=command),
        read=lambda path: call("exec_command", cmd=f"cat {path}"),
        agent=lambda prompt: call("multi_agent_v1__spawn_agent", message=prompt),
        agent_reports_later=True,
        meanwhile=call("exec_command", cmd="sleep 1"),
    ),
)
_SMALL_CODEX_CONFIG = f"""\
model_instructions_file = "{{home}}/instructions.md"
include_permissions_instructions = false
include_environment_context = false
include_apps_instructions = false
include_collaboration_mode_instructions = false
web_search = "disabled"
{_CODEX_CONFIG}
[agents]
enabled = false

[features]
goals = false

[skills]
include_instructions = false
"""
CODEX_SMALL = dataclasses.replace(
    CODEX,
    name="codex-small",
    files={
        ".codex/config.toml": _SMALL_CODEX_CONFIG,
        "instructions.md": "You are a helpful agent. Answer in one short sentence.",
    },
)
CLAUDE_BARE = dataclasses.replace(CLAUDE, name="claude-bare", command=("claude", "--bare", *_CLAUDE[1:]))
OPENCODE_RESPONSES = _opencode("responses", "@ai-sdk/openai")

GEMINI = Cli(
    name="gemini",
    protocol="gemini",
    prompt_tokens=10000,
    command=("gemini", "-y", "-p"),
    resume=("gemini", "-y", "--resume", "latest", "-p"),
    env={
        "GOOGLE_GEMINI_BASE_URL": "{url}",
        "GEMINI_API_KEY": "{key}",
        "GEMINI_MODEL": MODEL,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    },
    files={".gemini/settings.json": json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}}})},
    tools=Tools(
        write=lambda path, content: call("write_file", file_path=str(path), content=content),
        run=lambda command: call("run_shell_command", command=f"{command}; sleep 1"),
        read=lambda path: call("read_file", file_path=str(path)),
        agent=lambda prompt: call("invoke_agent", agent_name="generalist", prompt=prompt),
        report=lambda answer: call("complete_task", result={"response": answer}),
    ),
    at_overflow="exceeds the maximum number of tokens allowed",
)

CLIS = (CLAUDE, CODEX, OPENCODE_CHAT, OPENCODE_MESSAGES, OPENCODE_RESPONSES, QWEN_CHAT, QWEN_MESSAGES, GEMINI)
