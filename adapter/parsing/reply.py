"""A reply's text taken apart: reasoning first, tool calls in what is left, and the whole reply collected from the same events.

The streamed and the whole reply come from one list of events, so they cannot differ. Stand-ins of markers that were no structure
become text here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from adapter.parsing.base import ReasoningParser, ReplyContext, ReplyParser, ToolParser
from adapter.parsing.reasoning import ReasoningFamily, require_reasoning_family
from adapter.parsing.tools.family import ToolFamily, WholeReplyFamily
from adapter.parsing.tools.registry import require_tool_family
from adapter.parsing.unclosed import UnclosedReasoning, whole_calls
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

    def __init__(
        self,
        tools: ToolFamily | WholeReplyFamily,
        reasoning: ReasoningFamily,
        context: ReplyContext,
        max_calls: int | None = None,
    ) -> None:
        """What follows call number ``max_calls`` is no part of the reply."""
        self._context = context
        self._spelled = context.markers.spelled
        self._new_tools = tools.parser
        self._unclosed = _unclosed(tools, reasoning, context)
        self._reasoning: ReasoningParser
        if isinstance(tools, WholeReplyFamily):
            whole = tools.parser(context)
            self._tools: ToolParser = whole
            self._reasoning = _LeftToParser(whole)
        else:
            self._tools = tools.parser(context)
            self._reasoning = reasoning.parser(context)
        self._reasoning_text: list[str] = []
        self._text: list[str] = []
        self._uses: list[ToolUse] = []
        self._max_calls = max_calls
        self._ill_formed_then: bool | None = None
        """``ill_formed`` when the last call was there: a call that was begun behind it says nothing of the reply."""
        self._last: ReplyEvent | None = None

    @property
    def inside_reasoning(self) -> bool:
        return self._reasoning.inside and not (self._unclosed is not None and self._unclosed.past_reasoning)

    @property
    def undecided(self) -> bool:
        """Whether the text fed last is reasoning is not known yet: it may be a call in reasoning that was never closed."""
        return self._unclosed is not None and self._unclosed.holding

    @property
    def settled(self) -> bool:
        """No more reasoning can come."""
        return self._reasoning.settled

    @property
    def ends_in_call(self) -> bool:
        """The last thing in the reply so far is a complete tool call."""
        return isinstance(self._last, ToolCallEnd)

    def feed(self, text: str) -> list[ReplyEvent]:
        if self._unclosed is None:
            return self._collect(self._read(text))
        if self._reasoning.settled:
            text, self._unclosed = self._unclosed.rest() + text, None
            return self._collect(self._read(text))
        events: list[ReplyEvent] = []
        for piece in self._unclosed.cut(text):
            events += self._read(self._unclosed.take(piece, self._reasoning.inside))
        return self._collect(events)

    def finish(self) -> list[ReplyEvent]:
        events: list[ReplyEvent] = []
        rest = self._unclosed.rest() if self._unclosed is not None else ""
        calls = [] if rest else self._unclosed_calls()
        if self._unclosed is not None and not calls:
            events += self._read(self._unclosed.release() + rest)
        events += self._after_reasoning(self._reasoning.finish())
        return self._collect([*events, *calls, *self._tools.finish()])

    def _unclosed_calls(self) -> list[ReplyEvent]:
        calls = self._unclosed.calls() if self._unclosed is not None else ""
        return whole_calls(self._new_tools(self._context), calls, self._context) if calls else []

    def _read(self, text: str) -> list[ReplyEvent]:
        return self._after_reasoning(self._reasoning.feed(text))

    def output(self, stop_sequence: str | None = None) -> ParsedModelOutput:
        return ParsedModelOutput(
            reasoning="".join(self._reasoning_text),
            text="".join(self._text),
            tool_uses=tuple(self._uses),
            ill_formed=self._tools.ill_formed if self._ill_formed_then is None else self._ill_formed_then,
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
        events = [self._shown(event) for event in self._allowed(merged(events))]
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

    def _allowed(self, events: list[ReplyEvent]) -> list[ReplyEvent]:
        """Without what follows the last call that the reply may hold."""
        if self._max_calls is None:
            return events
        ends = [at for at, event in enumerate(events) if isinstance(event, ToolCallEnd)]
        missing = self._max_calls - len(self._uses)
        if missing <= 0:
            return []
        if len(ends) < missing:
            return events
        self._ill_formed_then = self._tools.ill_formed
        return events[: ends[missing - 1] + 1]

    def _shown(self, event: ReplyEvent) -> ReplyEvent:
        match event:
            case ReasoningDelta(text) if not text.isascii():
                return ReasoningDelta(self._spelled(text))
            case TextDelta(text) if not text.isascii():
                return TextDelta(self._spelled(text))
            case _:
                return event


def _unclosed(
    tools: ToolFamily | WholeReplyFamily, reasoning: ReasoningFamily, context: ReplyContext
) -> UnclosedReasoning | None:
    """None where calls inside the reasoning can't be told from thoughts."""
    if isinstance(tools, WholeReplyFamily) or tools.call_tags is None or not reasoning.markers:
        return None
    if any(context.markers.look(tag) == tag for tag in tools.call_tags):
        return None
    return UnclosedReasoning(context.markers, *tools.call_tags, reasoning.closing)


class _LeftToParser:
    """Stands where the reasoning parser does, for a parser that reads the reasoning itself: all goes on to it."""

    def __init__(self, parser: ReplyParser) -> None:
        self._parser = parser

    @property
    def inside(self) -> bool:
        return self._parser.inside

    @property
    def settled(self) -> bool:
        return self._parser.settled

    def feed(self, text: str) -> list[ReasoningDelta | TextDelta]:
        return [TextDelta(text)] if text else []

    def finish(self) -> list[ReasoningDelta | TextDelta]:
        return []


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

    Text has no tokens: what spells a marker is one, and there is no end token to take away. Raises: UnknownParser.
    """
    tools = require_tool_family(tool_parser_name or "none")
    reasoning = require_reasoning_family(reasoning_parser_name or "none")
    reply = ReplyText(tools, reasoning, ReplyContext(tools_schema or (), reasoning_opened=reasoning_opened))
    reply.feed(raw_output)
    reply.finish()
    return reply.output()
