"""Labels, by what each client is known to send."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from adapter.labels import label_request
from adapter.types import ChatRequest, Label, LabelKind, Normalised

TOOL = {"type": "function", "function": {"name": "read", "description": "", "parameters": {}}}
SUBAGENT_HEADER = "x-anthropic-billing-header: cc_version=2.1.332.a1f; cc_entrypoint=cli; cc_is_subagent=true;"

CLAUDE = {"X-Claude-Code-Session-Id": "c1", "User-Agent": "claude-cli/2.1.332 (external, cli)"}
CLAUDE_SUBAGENT = {**CLAUDE, "X-Claude-Code-Agent-Id": "a7", "x-claude-code-parent-agent-id": "a2"}
CODEX = {"session-id": "t1", "thread-id": "t1", "x-codex-turn-metadata": json.dumps({"request_kind": "turn"})}
CODEX_SUBAGENT = {**CODEX, "thread-id": "t2", "x-codex-parent-thread-id": "t1", "x-openai-subagent": "collab_spawn"}
OPENCODE = {"x-session-affinity": "ses_1", "x-session-id": "ses_1"}
OPENCODE_SUBAGENT = {"x-session-affinity": "ses_2", "x-session-id": "ses_2", "x-parent-session-id": "ses_1"}
QWEN = {"User-Agent": "QwenCode/0.24.4"}
GEMINI = {"User-Agent": "GeminiCLI-tui/0.61.0/gemini-2.5-pro (linux; x64; terminal)"}


def codex(**metadata: Any) -> dict[str, str]:
    return {**CODEX, "x-codex-turn-metadata": json.dumps(metadata)}


def request(
    system: str | None = "You are an agent.", user: str = "hi", *, tools: bool = True, **members: Any
) -> ChatRequest:
    messages = [{"role": "user", "content": user}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return ChatRequest(messages=tuple(messages), tools=(TOOL,) if tools else (), **members)


PLAIN = request()
BILLED = request(normalised=(Normalised("anthropic-billing-header", "system.0.text", SUBAGENT_HEADER),))
CLAUDE_TITLE = request("You are Claude Code.\nGenerate a concise, sentence-case title (3-7 words)", tools=False)
OPENCODE_TITLE = request("You are a title generator. You output ONLY a thread title.", tools=False)
SOME_TITLE = request("You help. Please write a short title for the chat.", tools=False)
CLAUDE_SUMMARY = request(user="done\nCRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n")
CODEX_SUMMARY = request(user="You are performing a CONTEXT CHECKPOINT COMPACTION. Create a summary.", tools=False)
QWEN_SUMMARY = request("You are the component that summarizes a conversation when its context window", tools=False)
QWEN_OLD_SUMMARY = request("You are the component that summarizes internal chat history into a structure.", tools=False)
OPENCODE_SUMMARY = request("You are a context summarization agent. You are given a conversation", tools=False)
OPENCODE_OLD_SUMMARY = request("You are an anchored context summarization assistant for sessions.", tools=False)
QWEN_MEMORY = request("You are now acting as the managed memory extraction subagent for an assistant.")
QWEN_RULES = """
Important Rules:
 - You operate in non-interactive mode: do not ask the user questions; proceed with available context."""
QWEN_SUBAGENT = request(f"You are a general-purpose subagent working for a parent agent.\n{QWEN_RULES}")
QWEN_MEMORY_AGENT = request(f"{QWEN_MEMORY.messages[0]['content']}\n{QWEN_RULES}")
GEMINI_SUMMARY = request("You are a specialized system component responsible for distilling chat history", tools=False)
GEMINI_ROUTER = request("You are a specialized Task Routing AI. Your sole function is to analyze", tools=False)
GEMINI_LOOP = request(
    "You are a diagnostic agent that determines whether a conversational AI assistant is stuck", tools=False
)
GEMINI_EDIT = request("\nYou are an expert code-editing assistant specializing in debugging", tools=False)
GEMINI_NEXT = request(
    user="Analyze *only* the content and structure of your immediately preceding response (your last turn"
)
GEMINI_TITLE = request(None, "Summarize the user's primary intent or goal in this conversation in ONE sentence (max 80")
GEMINI_DIGEST = request(None, "Summarize the following tool output to be a maximum of 2000 tokens.", tools=False)
REPORTING = dataclasses.replace(
    request(),
    tools=(TOOL, {"type": "function", "function": {"name": "complete_task", "description": "", "parameters": {}}}),
)
ONE_TOKEN = request(None, "quota", tools=False, max_tokens=1)


@pytest.mark.parametrize(
    ("headers", "asked", "label"),
    [
        ({}, PLAIN, Label()),
        ({}, request(None, tools=False), Label()),
        (CLAUDE, PLAIN, Label()),
        (CLAUDE_SUBAGENT, PLAIN, Label(LabelKind.SUBAGENT, "a7", "a2", "header:x-claude-code-agent-id")),
        (CLAUDE, BILLED, Label(LabelKind.SUBAGENT, source="billing-header:cc_is_subagent")),
        (GEMINI, PLAIN, Label()),
        (GEMINI, REPORTING, Label(LabelKind.SUBAGENT, source="tool:complete_task")),
        (QWEN, REPORTING, Label()),
        (GEMINI, GEMINI_SUMMARY, Label(LabelKind.COMPACTION, source="system:gemini-compaction")),
        (GEMINI, GEMINI_ROUTER, Label(LabelKind.OTHER, source="system:gemini-router")),
        (GEMINI, GEMINI_LOOP, Label(LabelKind.OTHER, source="system:gemini-loop-check")),
        (GEMINI, GEMINI_EDIT, Label(LabelKind.OTHER, source="system:gemini-edit-fix")),
        (GEMINI, GEMINI_NEXT, Label(LabelKind.OTHER, source="user:gemini-next-speaker")),
        (GEMINI, GEMINI_TITLE, Label(LabelKind.TITLE, source="user:gemini-title")),
        (GEMINI, GEMINI_DIGEST, Label(LabelKind.OTHER, source="user:gemini-tool-summary")),
        (CLAUDE, CLAUDE_TITLE, Label(LabelKind.TITLE, source="system:claude-title")),
        (CLAUDE, CLAUDE_SUMMARY, Label(LabelKind.COMPACTION, source="user:claude-compaction")),
        (CLAUDE_SUBAGENT, CLAUDE_SUMMARY, Label(LabelKind.COMPACTION, "a7", "a2", "user:claude-compaction")),
        (CLAUDE, ONE_TOKEN, Label(LabelKind.COUNT, source="shape:max_tokens=1")),
        ({}, ONE_TOKEN, Label()),
        (CODEX, PLAIN, Label()),
        (CODEX_SUBAGENT, PLAIN, Label(LabelKind.SUBAGENT, "t2", "t1", "header:x-openai-subagent")),
        ({"thread-id": "t2", "session-id": "t1", "x-codex-parent-thread-id": "t1"}, PLAIN,
         Label(LabelKind.SUBAGENT, "t2", "t1", "header:x-codex-parent-thread-id")),
        (codex(request_kind="compaction"), CODEX_SUMMARY, Label(LabelKind.COMPACTION, source="header:x-codex-turn-metadata")),
        (codex(request_kind="prewarm"), PLAIN, Label(LabelKind.OTHER, source="header:x-codex-turn-metadata")),
        (CODEX, CODEX_SUMMARY, Label(LabelKind.COMPACTION, source="user:codex-compaction")),
        ({**CODEX, "x-openai-subagent": "compact"}, PLAIN, Label(LabelKind.COMPACTION, source="header:x-openai-subagent")),
        ({**CODEX, "x-openai-memgen-request": "true"}, PLAIN, Label(LabelKind.MEMORY, source="header:x-openai-memgen-request")),
        ({**CODEX, "x-codex-turn-metadata": "no JSON"}, PLAIN, Label()),
        ({**CODEX, "x-codex-turn-metadata": "[]"}, PLAIN, Label()),
        (OPENCODE, PLAIN, Label()),
        (OPENCODE, OPENCODE_TITLE, Label(LabelKind.TITLE, source="system:opencode-title")),
        (OPENCODE, OPENCODE_SUMMARY, Label(LabelKind.COMPACTION, source="system:opencode-compaction")),
        (OPENCODE, OPENCODE_OLD_SUMMARY, Label(LabelKind.COMPACTION, source="system:opencode-compaction")),
        (OPENCODE_SUBAGENT, PLAIN, Label(LabelKind.SUBAGENT, "ses_2", "ses_1", "header:x-parent-session-id")),
        (QWEN, PLAIN, Label()),
        (QWEN, QWEN_SUMMARY, Label(LabelKind.COMPACTION, source="system:qwen-compaction")),
        (QWEN, QWEN_OLD_SUMMARY, Label(LabelKind.COMPACTION, source="system:qwen-compaction")),
        (QWEN, QWEN_MEMORY, Label(LabelKind.MEMORY, source="system:qwen-memory")),
        (QWEN, QWEN_MEMORY_AGENT, Label(LabelKind.MEMORY, source="system:qwen-memory")),
        (QWEN, QWEN_SUBAGENT, Label(LabelKind.SUBAGENT, source="system:qwen-subagent")),
        ({}, SOME_TITLE, Label(LabelKind.TITLE, source="shape:title")),
    ],
)  # fmt: skip
def test_labels(headers: dict[str, str], asked: ChatRequest, label: Label) -> None:
    assert label_request(headers, asked) == label


def test_header_names_are_read_in_any_case() -> None:
    shouted = {name.upper(): value for name, value in CLAUDE_SUBAGENT.items()}
    assert label_request(shouted, PLAIN) == label_request(CLAUDE_SUBAGENT, PLAIN)


def test_an_empty_header_is_none() -> None:
    assert label_request({"x-claude-code-agent-id": ""}, PLAIN) == Label()


@pytest.mark.parametrize(
    "asked",
    [
        request(user="grep for 'CRITICAL: Respond with TEXT ONLY' please"),
        request("Delegate titles: You are a title generator is another prompt."),
        request("Every reply must write a title first."),
        request("x" * 5000 + "\nYou are a title generator", tools=False),
    ],
)
def test_an_agent_that_speaks_of_side_calls_is_the_main_loop(asked: ChatRequest) -> None:
    assert label_request(CLAUDE, asked).kind is LabelKind.MAIN


def test_a_tool_result_is_not_the_users_words() -> None:
    messages = [
        *PLAIN.messages,
        {"role": "assistant", "content": ""},
        {"role": "tool", "content": "CRITICAL: Respond with TEXT ONLY"},
    ]
    assert label_request(CLAUDE, ChatRequest(messages=tuple(messages), tools=(TOOL,))).kind is LabelKind.MAIN


def test_a_conversation_about_titles_that_goes_on_is_the_main_loop() -> None:
    messages = [*SOME_TITLE.messages, {"role": "assistant", "content": "A"}, {"role": "user", "content": "shorter"}]
    assert label_request({}, ChatRequest(messages=tuple(messages))).kind is LabelKind.MAIN
