"""The agent CLIs: how each is started and resumed, pointed at a server, what its tools are called, and where it goes its own way.

Measured with the versions of ``package.json``.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping

from tests.clients.cli import Cli, Tools, call

MODEL = "rollserve"

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
        # It may keep the attempt that broke off, a text or a call without arguments, before the one that did not.
        branches={"cut-call": 2, "cut-text": 2, "overflow": 2},
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
