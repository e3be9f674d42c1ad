"""Reasoning that stands before the visible text: ``<think>`` ... ``</think>``, or other tags of the same use.

The opening tag may be the first thing in the output or already the last thing in the prompt (``opened``); a tag that repeats the
prompt's is not part of the reasoning. Without a closing tag all of it is reasoning. After the closing tag all is visible text: a
later ``<think>`` is literal. A tool call inside the reasoning is a thought, but for what ``adapter.parsing.unclosed`` says.

The newlines around the tags belong to the format, as chat templates have it (Qwen3: ``<think>``, newline, reasoning without outer
newlines, newline, ``</think>``, two newlines, text without leading newlines), so a parsed message renders to what was sampled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from adapter.parsing.base import ReasoningParser, ReplyContext, UnknownParser, held_suffix
from adapter.parsing.markers import Markers
from adapter.types import ReasoningDelta, TextDelta

MAX_LEAD = 16
"""White space before the opening tag, in characters; models write none or a newline. More means visible text."""

_LEAD = re.compile(rf"\s{{0,{MAX_LEAD}}}")


class NoReasoning:
    """All is visible text."""

    inside = False
    settled = True

    def feed(self, text: str) -> list[ReasoningDelta | TextDelta]:
        return [TextDelta(text)] if text else []

    def finish(self) -> list[ReasoningDelta | TextDelta]:
        return []


class ThinkTags:
    """See the module. ``opening`` and ``closing``: what the tags look like in the input."""

    def __init__(self, opened: bool, opening: str, closing: str) -> None:
        self._opening = opening
        self._closing = closing
        self.inside = opened
        self.settled = False
        self._held = ""
        self._newlines = 0
        """Newlines at the end of the reasoning so far: they are part of it only if more reasoning follows."""
        self._step = self._lead

    def feed(self, text: str) -> list[ReasoningDelta | TextDelta]:
        rest, self._held = self._held + text, ""
        events: list[ReasoningDelta | TextDelta] = []
        while rest:
            rest = self._step(rest, events)
        return events

    def finish(self) -> list[ReasoningDelta | TextDelta]:
        held, self._held = self._held, ""
        if not held:
            return []
        if not self.inside:
            return [TextDelta(held)]
        reasoning = self._reasoning_text(held.lstrip("\n") if self._step == self._lead else held)
        return [ReasoningDelta(reasoning)] if reasoning else []

    # A step takes text from the front, adds events, and gives back what the next step is to deal with: "" when that is nothing or
    # when the rest is held, because only the next character can tell.

    def _lead(self, text: str, events: list[ReasoningDelta | TextDelta]) -> str:
        match = _LEAD.match(text)
        assert match is not None
        word = text[match.end() :]
        if word.startswith(self._opening):
            self.inside = True
            self._step = self._first_newlines
            return word.removeprefix(self._opening)
        if self._opening.startswith(word):
            self._held = text
            return ""
        self._step = self._first_newlines if self.inside else self._visible
        return text

    def _first_newlines(self, text: str, events: list[ReasoningDelta | TextDelta]) -> str:
        rest = text.lstrip("\n")
        if rest:
            self._step = self._reasoning
        return rest

    def _reasoning(self, text: str, events: list[ReasoningDelta | TextDelta]) -> str:
        thought, tag, rest = text.partition(self._closing)
        if not tag:
            kept = len(text) - held_suffix(text, self._closing)
            thought, self._held = text[:kept], text[kept:]
        if reasoning := self._reasoning_text(thought):
            events.append(ReasoningDelta(reasoning))
        if tag:
            self.inside = False
            self._step = self._visible_newlines
        return rest

    def _reasoning_text(self, thought: str) -> str:
        body = thought.rstrip("\n")
        newlines = len(thought) - len(body)
        if not body:
            self._newlines += newlines
            return ""
        body = "\n" * self._newlines + body
        self._newlines = newlines
        return body

    def _visible_newlines(self, text: str, events: list[ReasoningDelta | TextDelta]) -> str:
        rest = text.lstrip("\n")
        if rest:
            self._step = self._visible
        return rest

    def _visible(self, text: str, events: list[ReasoningDelta | TextDelta]) -> str:
        self.settled = True
        events.append(TextDelta(text))
        return ""


@dataclass(frozen=True, slots=True)
class ReasoningFamily:
    """The tags around the reasoning. Without them all is visible text."""

    opening: str = ""
    closing: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.opening, self.closing) if self.opening else ()

    def parser(self, context: ReplyContext) -> ReasoningParser:
        """The parser of one reply."""
        if not self.opening:
            return NoReasoning()
        look = context.markers.look
        return ThinkTags(context.reasoning_opened, look(self.opening), look(self.closing))

    def opened_by(self, prompt_tail: str, markers: Markers) -> bool:
        """Whether a prompt ends inside the reasoning. Reads the last few characters of ``prompt_tail`` only."""
        opening = markers.look(self.opening)
        return bool(opening) and prompt_tail[-len(opening) - MAX_LEAD :].rstrip().endswith(opening)


_THINK = ReasoningFamily("<think>", "</think>")

REASONING_FAMILIES: Mapping[str, ReasoningFamily] = MappingProxyType(
    {
        "none": ReasoningFamily(),
        "think": _THINK,
        "qwen3": _THINK,  # the name that SGLang and slime use
        "mistral": ReasoningFamily("[THINK]", "[/THINK]"),
    }
)


def require_reasoning_family(name: str) -> ReasoningFamily:
    """Raises: UnknownParser."""
    if name not in REASONING_FAMILIES:
        raise UnknownParser("reasoning", name, REASONING_FAMILIES)
    return REASONING_FAMILIES[name]
