"""Only the new part: what is put behind a turn's stored ids so that the model can answer new messages.

    ids of the prompt ++ sampled ids ++ suffix(new messages)  =  the next prompt

The chat template renders a fixed short history plus the new messages; everything behind the history's last content is the suffix.
Its cost follows the new messages, whatever the session's length. The closer of the turn before is taken from the engine as far as
the engine returned it: if the output ends with an end token, the closer's first token is not repeated, even where a history would
have another (``<|end|>`` for a sampled ``<|return|>``); a truncated output gets the whole closer. Where an end token is at the same
time the opener of the next message (GLM), it is shared. What was inserted is scaffold and never trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from adapter.render.closing import (
    NAME,
    RESULT,
    STAND_IN_TOOL,
    USER,
    Closing,
    SuffixRefused,
    behind_edge,
    learn_closing,
)
from adapter.render.control import Marks
from adapter.render.encoding import Encoder
from adapter.render.opener import GenerationPrompts, common_prefix
from adapter.render.text import PromptText, RenderOptions
from adapter.types import Message, ScaffoldKind, ScaffoldSpan, Tool
from engine.types import Ids

_OTHER_TOOL: Tool = {
    "type": "function",
    "function": {"name": "other", "description": "y", "parameters": {"type": "object", "properties": {"y": {}}}},
}


@dataclass(frozen=True, slots=True)
class Suffix:
    """What to append to the stored ids of a turn."""

    ids: Ids
    """int32 [S]."""
    scaffold: tuple[ScaffoldSpan, ...]
    """Inserted closer and generation prompt, as spans of ``ids``."""
    text: str
    """The rendered text from the turn's closer to the end; its end tells whether the reasoning is opened."""


@dataclass(frozen=True, slots=True)
class Before:
    """The turn that the suffix follows."""

    tail: Ids
    """Its output ids, or the last few of them; only the very last is read. Empty if nothing was sampled."""
    called: tuple[str, ...] = ()
    """Names of the tools that it called, in order, for templates that name them in their results (gpt-oss)."""


class SuffixRenderer:
    """Suffixes for one model. Stateless once built; safe to call from several threads."""

    def __init__(self, text: PromptText, encoder: Encoder, openers: GenerationPrompts, end_ids: Sequence[int]) -> None:
        """Raises: SuffixRefused, if the template cannot be read."""
        self._text = text
        self._encoder = encoder
        self._openers = openers
        self._ends = frozenset(end_ids)
        self._plain = learn_closing(text, encoder, end_ids)
        self._call: Closing | str
        try:
            self._call = learn_closing(text, encoder, end_ids, self._plain)
        except SuffixRefused as error:
            self._call = str(error)
        self._reads_tools = self._tail_depends_on_tools()

    def render(self, messages: Sequence[Message], options: RenderOptions, before: Before) -> Suffix:
        """The suffix for new ``messages`` behind the turn ``before``.

        Raises: BadRequest, if the template refuses the messages; SuffixRefused, if it renders them in another way than was learned.
        """
        closing = self._closing(messages)
        if options.tools and not self._reads_tools:
            options = replace(options, tools=(STAND_IN_TOOL,))
        marks = self._text.marks([*messages, {"names": before.called}], options)
        tail = self._tail(closing, messages, options, before.called, marks)
        ids = self._encoder.encode(tail, marks, at_start=False)
        shown = marks.remove(tail)
        start = self._already_there(closing, ids, before.tail)
        opener = self._openers.start(options.variables, shown, ids)
        return Suffix(ids[start:], self._scaffold(closing, ids, start, opener), shown)

    def glue(self, messages: Sequence[Message]) -> str:
        """What the template writes between the end of an assistant's last argument and the closer, if ``messages`` answer calls."""
        return self._closing(messages).glue

    def _closing(self, messages: Sequence[Message]) -> Closing:
        if not messages or messages[0]["role"] != "tool":
            return self._plain
        if isinstance(self._call, str):
            raise SuffixRefused(self._call)
        return self._call

    def _tail(
        self,
        closing: Closing,
        messages: Sequence[Message],
        options: RenderOptions,
        called: Sequence[str],
        marks: Marks,
    ) -> str:
        """The text from the closer on."""
        results = next((n for n, message in enumerate(messages) if message["role"] != "tool"), len(messages))
        names = [*called, *[NAME] * (results - len(called))]
        history = closing.history.messages(marks.edge, names)
        tail = behind_edge(self._text.render([*history, *messages], options, marks), marks)
        if not tail.startswith(closing.glue + closing.closer):
            raise SuffixRefused(f"{tail[:40]!r} follows the assistant's turn, not {closing.glue + closing.closer!r}")
        return tail.removeprefix(closing.glue)

    def _already_there(self, closing: Closing, ids: Ids, output_tail: Ids) -> int:
        """How many of the suffix's ids stand at the end of the output."""
        if not output_tail.size:
            return 0
        last = int(output_tail[-1])
        if closing.ended and (last in self._ends or last == closing.ids[closing.ended - 1]):
            return closing.ended
        is_shared = not closing.closer and last in self._ends and ids[:1].tolist() == [last]
        return int(is_shared)

    def _scaffold(self, closing: Closing, ids: Ids, start: int, opener: int) -> tuple[ScaffoldSpan, ...]:
        """Spans of ``ids[start:]``; ``opener`` is where the generation prompt begins in ``ids``."""
        close = common_prefix(ids, closing.ids)
        spans = (
            ScaffoldSpan(0, max(close - start, 0), ScaffoldKind.CLOSE),
            ScaffoldSpan(max(opener, close, start) - start, int(ids.size) - start, ScaffoldKind.GENERATION_PROMPT),
        )
        return tuple(span for span in spans if span.end > span.start)

    def _tail_depends_on_tools(self) -> bool:
        """Whether a suffix changes with what the tools are. Nearly no template's does; then they need not be rendered each time."""
        marks = self._text.marks((), RenderOptions())
        follows = [(self._plain, USER)]
        if isinstance(self._call, Closing):
            follows.append((self._call, RESULT))
        for closing, message in follows:
            few, many = (
                self._tail(closing, [message], RenderOptions(tools), (), marks)
                for tools in ((STAND_IN_TOOL,), (_OTHER_TOOL, STAND_IN_TOOL))
            )
            if few != many:
                return True
        return False
