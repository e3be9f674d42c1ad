"""A reply's text taken apart: reasoning first, tool calls in what is left, and the whole reply collected from the same events.

The streamed and the whole reply come from one list of events, so they cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from adapter.parsing.base import ReasoningParser, ToolParser
from adapter.parsing.reasoning import require_reasoning_parser
from adapter.parsing.tools.registry import require_tool_family
from adapter.types import (
    ParsedModelOutput,
    ReasoningDelta,
    ReplyEvent,
    TextDelta,
    Tool,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolUse,
)


class ReplyText:
    """Text in, merged events out; ``output`` is what they amount to."""

    def __init__(self, tools: ToolParser, reasoning: ReasoningParser) -> None:
        self._tools = tools
        self._reasoning = reasoning
        self._reasoning_text: list[str] = []
        self._text: list[str] = []
        self._uses: list[ToolUse] = []
        self._last: ReplyEvent | None = None

    @property
    def inside_reasoning(self) -> bool:
        return self._reasoning.inside

    @property
    def settled(self) -> bool:
        """No more reasoning can come."""
        return self._reasoning.settled

    @property
    def ends_in_call(self) -> bool:
        """The last thing in the reply so far is a complete tool call."""
        return isinstance(self._last, ToolCallEnd)

    def feed(self, text: str) -> list[ReplyEvent]:
        return self._collect(self._after_reasoning(self._reasoning.feed(text)))

    def finish(self) -> list[ReplyEvent]:
        return self._collect(self._after_reasoning(self._reasoning.finish()) + self._tools.finish())

    def output(self, stop_sequence: str | None = None) -> ParsedModelOutput:
        return ParsedModelOutput(
            reasoning="".join(self._reasoning_text),
            text="".join(self._text),
            tool_uses=tuple(self._uses),
            ill_formed=self._tools.ill_formed,
            stop_sequence=stop_sequence,
        )

    def _after_reasoning(self, events: Iterable[ReasoningDelta | TextDelta]) -> list[ReplyEvent]:
        parsed: list[ReplyEvent] = []
        for event in events:
            if isinstance(event, TextDelta):
                parsed += self._tools.feed(event.text)
            else:
                parsed.append(event)
        return parsed

    def _collect(self, events: list[ReplyEvent]) -> list[ReplyEvent]:
        events = merged(events)
        for event in events:
            match event:
                case ReasoningDelta(text):
                    self._reasoning_text.append(text)
                case TextDelta(text):
                    self._text.append(text)
                case ToolCallEnd(use):
                    self._uses.append(use)
                case ToolCallStart() | ToolCallDelta():
                    pass
        if events:
            self._last = events[-1]
        return events


def merged(events: Sequence[ReplyEvent]) -> list[ReplyEvent]:
    """The same events with adjacent deltas of one kind joined."""
    if len(events) < 2:
        return list(events)
    joined: list[ReplyEvent] = []
    run: list[ReplyEvent] = []
    for event in events:
        if run and type(run[0]) is not type(event):
            joined += _joined(run)
            run = []
        run.append(event)
    return joined + _joined(run)


def _joined(run: list[ReplyEvent]) -> list[ReplyEvent]:
    """``run`` holds events of one kind; of calls' starts and ends, each stands for itself."""
    match run:
        case [] | [_]:
            return run
        case [ReasoningDelta(), *_]:
            return [ReasoningDelta("".join(event.text for event in run if isinstance(event, ReasoningDelta)))]
        case [TextDelta(), *_]:
            return [TextDelta("".join(event.text for event in run if isinstance(event, TextDelta)))]
        case [ToolCallDelta(), *_]:
            return [ToolCallDelta("".join(event.arguments for event in run if isinstance(event, ToolCallDelta)))]
        case _:
            return run


def parse_model_output(
    raw_output: str,
    tools_schema: Sequence[Tool] | None,
    tool_parser_name: str | None = None,
    reasoning_parser_name: str | None = None,
    *,
    reasoning_opened: bool = False,
) -> ParsedModelOutput:
    """A whole reply's decoded text, through the parsers that streamed replies go through. No name means ``none``.

    Text has no end token to take away: what ``raw_output`` ends in is part of the reply. Raises: UnknownParser.
    """
    tools = require_tool_family(tool_parser_name or "none").parser(tools_schema or ())
    reasoning = require_reasoning_parser(reasoning_parser_name or "none")(reasoning_opened)
    reply = ReplyText(tools, reasoning)
    reply.feed(raw_output)
    reply.finish()
    return reply.output()
