"""What the scripted model says: conversations as chains of steps, each asked for by the mark that its prompt ends with.

A mark ``[KEY#STEP]`` stands in the user's prompt and in each reply; a rule answers where its mark is the last one. So a rule needs
no turn number, and holds for retries, side calls and sub-agents alike. ``KEY`` names one run of one CLI; marks of another run are
never met, since each has its own session.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.clients.cli import Call

TAIL_TOKENS = 8192
"""How much of a prompt's end the model reads; more than any CLI puts behind the user's words."""

SIDE_CALLS = (
    ("title generator|sentence-case title", "A title"),
    ("managed memory|memory extraction", "Nothing to remember."),
)
"""Words of requests that are not the conversation, and what they are told."""

SUMMARY_WORDS = "|".join(
    (
        "CRITICAL: Respond with TEXT ONLY",
        "CONTEXT CHECKPOINT COMPACTION",
        "Create a new anchored summary",
        "produce the <state_snapshot>",
        "distilling chat history",
    )
)
"""Claude Code, Codex, opencode, Qwen Code, Gemini CLI: how each asks for a summary of what was, to go on from."""


@dataclass(frozen=True, slots=True)
class Story:
    """One run's conversation, being written."""

    key: str
    rules: list[dict[str, Any]] = field(default_factory=list)

    def mark(self, step: str) -> str:
        return f"[{self.key}#{step}]"

    def prompt(self, step: str, words: str) -> str:
        """What a user, or a parent agent, says to set off ``step``."""
        return f"{words} {self.mark(step)}"

    def then(self, after: str, step: str, words: str, *calls: Call, **more: Any) -> None:
        """Where the last mark is ``after``: think, say ``words`` and ``step``'s mark, call tools. ``more``: fields of the rule."""
        text = f"<think>\nThe task goes on after {after}.\n\n</think>\n\n{words} {self.mark(step)}"
        text += "".join(f"\n<tool_call>\n{_unusual(each)}\n</tool_call>" for each in calls)
        self.rules.append({"prompt_regex": self._last(after), "text": text, "end": True, **more})

    def summary(self, step: str) -> None:
        """Where the CLI asks for a summary of the conversation: one with ``step``'s mark in it."""
        own = re.escape(f"[{self.key}#")
        condition = rf"(?:{SUMMARY_WORDS})[\s\S]*{own}|{own}[\s\S]*(?:{SUMMARY_WORDS})"
        text = f"<summary>The file is written; the command is still to be run. {self.mark(step)}</summary>"
        self.rules.insert(0, {"prompt_regex": condition, "text": text, "end": True})

    def _last(self, step: str) -> str:
        """Marks inside a call do not count: those are for a sub-agent to read."""
        outside = r"(?![^<]*</tool_call>)"
        return rf"{re.escape(self.mark(step))}{outside}(?![\s\S]*\[\S+#\w+\]{outside})"


def _unusual(call: Call) -> str:
    """JSON as no client would write it again: keys in reverse order, and spaces where none need be."""
    arguments = dict(reversed(call["arguments"].items()))
    return json.dumps({"name": call["name"], "arguments": arguments}, separators=(" , ", " : "))


def script(stories: list[Story], **timing: float) -> Mapping[str, Any]:
    """A script for the scripted model that tells all of them."""
    side_calls = [{"prompt_regex": words, "text": answer, "end": True} for words, answer in SIDE_CALLS]
    return {
        "rules": side_calls + [rule for story in stories for rule in story.rules],
        "default": {"text": "I do not know what to do.", "end": True},
        "tail_tokens": TAIL_TOKENS,
        "timing": timing,
    }
