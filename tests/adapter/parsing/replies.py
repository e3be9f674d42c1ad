"""Runs text through the parsers, and holds the events against what every reply's events must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adapter.jsontext import json_text, read_json
from adapter.parsing.base import ReplyContext
from adapter.parsing.reasoning import require_reasoning_family
from adapter.parsing.reply import ReplyText, merged
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
)
from tests.support.feeding import same_however_fed


def tool(name: str, **properties: Any) -> Tool:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


LOOKUP = tool("lookup", q={"type": "string"}, query={"type": "string"}, n={"type": "integer"})
READ_FILE = tool("read_file", path={"type": "string"})


def run(
    pieces: Sequence[str], tool_parser: str, reasoning_parser: str = "none", tools: Sequence[Tool] = (LOOKUP, READ_FILE)
) -> tuple[list[ReplyEvent], ParsedModelOutput]:
    """All events of a reply, adjacent deltas joined, and the whole."""
    family = require_tool_family(tool_parser)
    reply = ReplyText(family, require_reasoning_family(reasoning_parser), ReplyContext(tools))
    batches = [reply.feed(piece) for piece in pieces] + [reply.finish()]
    for batch in batches:
        assert batch == merged(batch)
    return merged([event for batch in batches for event in batch]), reply.output()


def events_and_output(
    text: str,
    tool_parser: str,
    reasoning_parser: str = "none",
    tools: Sequence[Tool] = (LOOKUP, READ_FILE),
    seed: int = 0,
) -> tuple[list[ReplyEvent], ParsedModelOutput]:
    """``run``, fed in every way; the events are checked."""
    events, output = same_however_fed(lambda pieces: run(pieces, tool_parser, reasoning_parser, tools), text, seed)
    assert_events_make(events, output)
    return events, output


def parsed(text: str, tool_parser: str, **options: Any) -> ParsedModelOutput:
    return events_and_output(text, tool_parser, **options)[1]


def assert_events_make(events: Sequence[ReplyEvent], output: ParsedModelOutput) -> None:
    """Calls are started, filled and ended one after the other; their fragments are the JSON of their input. All of it is Unicode
    text: no stand-in of a marker is left."""
    running: str | None = None
    fragments = ""
    texts: dict[type, str] = {ReasoningDelta: "", TextDelta: ""}
    uses = []
    for event in events:
        match event:
            case ToolCallStart(name):
                assert running is None
                running, fragments = name, ""
            case ToolCallDelta(arguments):
                assert running is not None
                assert arguments
                fragments += arguments
            case ToolCallEnd(use):
                assert (use.name, use.input) == (running, read_json(fragments))
                for text in (use.name, fragments, json_text(use.input)):
                    text.encode()
                running = None
                uses.append(use)
            case ReasoningDelta(text) | TextDelta(text):
                assert running is None
                assert text.encode()
                texts[type(event)] += text
    assert running is None
    assert (output.reasoning, output.text, list(output.tool_uses)) == (texts[ReasoningDelta], texts[TextDelta], uses)
