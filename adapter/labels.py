"""Labels: which of a session's agents sent a request, and what for.

One agent program sends more than its main loop: sub-agents, titles, summaries of the history, notes for later. They share the
session and become branches of its forest; the label says which is which. It describes a turn and decides nothing about matching.

The evidence, strongest first; the first that speaks decides the kind:

    1. a header that names the kind of request (Codex)
    2. words that a program is known to open such a request with: in its system prompt, or in its last user message
    3. the request's shape
    4. a header, the billing header or a tool that says "sub-agent"

Whose request it is (``agent``, ``parent``) comes from headers alone, whatever the kind. Words are looked for at the start of a line
only, and never in tool results, so an agent that reads about them is not mistaken for a side call. No tools alone prove nothing: an
agent may run without.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from adapter.types import ChatRequest, Label, LabelKind

SYSTEM_HEAD = 4096
"""Characters of a system prompt that are read; every opening below stands near its start."""


class _Words(NamedTuple):
    """``opening`` starts a line of the system prompt or of the last user message."""

    name: str
    kind: LabelKind
    opening: str


_SYSTEM_WORDS = (
    _Words("opencode-title", LabelKind.TITLE, "You are a title generator"),
    _Words("claude-title", LabelKind.TITLE, "Generate a concise, sentence-case title"),
    _Words("claude-topic", LabelKind.TITLE, "Analyze if this message indicates a new conversation topic"),
    _Words("qwen-compaction", LabelKind.COMPACTION, "You are the component that summarizes"),
    _Words("opencode-compaction", LabelKind.COMPACTION, "You are an anchored context summarization assistant"),
    _Words("opencode-compaction", LabelKind.COMPACTION, "You are a context summarization agent"),
    _Words("conversation-summary", LabelKind.COMPACTION, "You are a helpful AI assistant tasked with summarizing"),
    _Words("qwen-memory", LabelKind.MEMORY, "You are now acting as the managed memory"),
    _Words("qwen-memory-plan", LabelKind.MEMORY, "You are acting as the managed memory"),
    _Words("qwen-memory-dream", LabelKind.MEMORY, "You are performing a managed memory"),
    _Words(
        "gemini-compaction", LabelKind.COMPACTION, "You are a specialized system component responsible for distilling"
    ),
    _Words("gemini-router", LabelKind.OTHER, "You are a Task Routing AI"),
    _Words("gemini-router", LabelKind.OTHER, "You are a specialized Task Routing AI"),
    _Words(
        "gemini-loop-check", LabelKind.OTHER, "You are a diagnostic agent that determines whether a conversational AI"
    ),
    _Words("gemini-edit-fix", LabelKind.OTHER, "You are an expert code-editing assistant"),
    _Words(
        "qwen-subagent", LabelKind.SUBAGENT, " - You operate in non-interactive mode: do not ask the user questions"
    ),
)

_USER_WORDS = (
    _Words("claude-compaction", LabelKind.COMPACTION, "CRITICAL: Respond with TEXT ONLY"),
    _Words("codex-compaction", LabelKind.COMPACTION, "You are performing a CONTEXT CHECKPOINT COMPACTION"),
    _Words("claude-memory", LabelKind.MEMORY, "You are now acting as the memory extraction subagent"),
    _Words("claude-suggestion", LabelKind.OTHER, "[SUGGESTION MODE:"),
    _Words(
        "gemini-title",
        LabelKind.TITLE,
        "Summarize the user's primary intent or goal in this conversation in ONE sentence",
    ),
    _Words(
        "gemini-next-speaker", LabelKind.OTHER, "Analyze *only* the content and structure of your immediately preceding"
    ),
    _Words("gemini-tool-summary", LabelKind.OTHER, "Summarize the following tool output to be a maximum of"),
)

_CODEX_KINDS: Mapping[str, LabelKind] = {
    "compaction": LabelKind.COMPACTION,
    "prewarm": LabelKind.OTHER,
    "memory": LabelKind.MEMORY,
}
"""``request_kind`` of ``x-codex-turn-metadata``; ``turn`` leaves the kind open."""

_CODEX_SUBAGENTS: Mapping[str, LabelKind] = {
    "compact": LabelKind.COMPACTION,
    "memory_consolidation": LabelKind.MEMORY,
}
"""``x-openai-subagent``; any other value is a sub-agent proper (``collab_spawn``, ``review``)."""

_ASKS_FOR_A_TITLE = re.compile(r"\b(?:generate|write|create|output|give)\b[^\n.]{0,80}\btitle\b", re.IGNORECASE)


def label_request(headers: Mapping[str, str], request: ChatRequest) -> Label:
    """``headers`` in any case."""
    lowered = {name.lower(): value for name, value in headers.items() if value}
    agent, parent = _agents(lowered)
    kind, source = _kind(lowered, request)
    return Label(kind, agent, parent, source)


def _agents(headers: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The agent that asked, and the one that started it; None for the main agent."""
    if "x-claude-code-agent-id" in headers:
        return headers["x-claude-code-agent-id"], headers.get("x-claude-code-parent-agent-id")
    thread = headers.get("thread-id")
    if thread and thread != headers.get("session-id", thread):
        return thread, headers.get("x-codex-parent-thread-id")
    if "x-parent-session-id" in headers:
        return headers.get("x-session-affinity") or headers.get("x-session-id"), headers["x-parent-session-id"]
    return None, headers.get("x-codex-parent-thread-id")


def _kind(headers: Mapping[str, str], request: ChatRequest) -> tuple[LabelKind, str]:
    return (
        _named_kind(headers)
        or _worded_kind(request)
        or _shaped_kind(headers, request)
        or _subagent(headers, request)
        or (LabelKind.MAIN, "default")
    )


def _named_kind(headers: Mapping[str, str]) -> tuple[LabelKind, str] | None:
    kind = _CODEX_KINDS.get(str(_json_object(headers.get("x-codex-turn-metadata")).get("request_kind")))
    if kind is not None:
        return kind, "header:x-codex-turn-metadata"
    if headers.get("x-openai-memgen-request", "").lower() == "true":
        return LabelKind.MEMORY, "header:x-openai-memgen-request"
    kind = _CODEX_SUBAGENTS.get(headers.get("x-openai-subagent", ""))
    return None if kind is None else (kind, "header:x-openai-subagent")


def _worded_kind(request: ChatRequest) -> tuple[LabelKind, str] | None:
    system = _system(request)
    for words in _SYSTEM_WORDS:
        if _opens_a_line(words.opening, system):
            return words.kind, f"system:{words.name}"
    last = request.messages[-1]
    if last["role"] == "user":
        for words in _USER_WORDS:
            if _opens_a_line(words.opening, last["content"]):
                return words.kind, f"user:{words.name}"
    return None


def _shaped_kind(headers: Mapping[str, str], request: ChatRequest) -> tuple[LabelKind, str] | None:
    """By shape: one reply token that Claude Code asks for is a count or a quota check; a first turn without tools that asks for
    a title gives one."""
    if request.max_tokens == 1 and headers.get("user-agent", "").startswith("claude-cli/"):
        return LabelKind.COUNT, "shape:max_tokens=1"
    first_turn = all(message["role"] in ("system", "user") for message in request.messages)
    if first_turn and not request.tools and _ASKS_FOR_A_TITLE.search(_system(request)):
        return LabelKind.TITLE, "shape:title"
    return None


def _subagent(headers: Mapping[str, str], request: ChatRequest) -> tuple[LabelKind, str] | None:
    for name in ("x-claude-code-agent-id", "x-openai-subagent", "x-codex-parent-thread-id", "x-parent-session-id"):
        if name in headers:
            return LabelKind.SUBAGENT, f"header:{name}"
    if headers.get("user-agent", "").startswith("GeminiCLI") and _offers(request, "complete_task"):
        return LabelKind.SUBAGENT, "tool:complete_task"
    if any("cc_is_subagent=true" in taken.original for taken in request.normalised):
        return LabelKind.SUBAGENT, "billing-header:cc_is_subagent"
    return None


def _offers(request: ChatRequest, name: str) -> bool:
    """Whether the request has a tool of this name. gemini-cli's sub-agents report by one that its main loop does not have."""
    return any(tool["function"]["name"] == name for tool in request.tools)


def _system(request: ChatRequest) -> str:
    """The start of the system prompt: the system messages that head the history."""
    texts: list[str] = []
    for message in request.messages:
        if message["role"] != "system":
            break
        texts.append(message["content"])
    return "\n".join(texts)[:SYSTEM_HEAD]


def _opens_a_line(opening: str, text: str) -> bool:
    return text.startswith(opening) or f"\n{opening}" in text


def _json_object(text: str | None) -> dict[str, Any]:
    try:
        value = orjson.loads(text or "")
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
