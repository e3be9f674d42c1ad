"""Replies of families whose markers are tokens, read both ways: markers as stand-ins, and as the text that spells them."""

from __future__ import annotations

from collections.abc import Sequence

from adapter.parsing.base import ReplyContext
from adapter.parsing.markers import Markers
from adapter.parsing.reasoning import require_reasoning_family
from adapter.parsing.reply import ReplyText, merged
from adapter.parsing.tools.registry import require_tool_family
from adapter.types import ParsedModelOutput, ReplyEvent, Tool
from tests.adapter.parsing.replies import LOOKUP, READ_FILE, assert_events_make
from tests.support.feeding import same_however_fed

TOOLS = (LOOKUP, READ_FILE)
FIRST_ID = 1000


def markers_of(tool_parser: str, reasoning_parser: str = "none") -> Markers:
    """All markers of the parsers as tokens of some vocabulary."""
    families = (require_tool_family(tool_parser), require_reasoning_family(reasoning_parser))
    texts = dict.fromkeys(text for family in families for text in family.markers)
    return Markers({text: FIRST_ID + n for n, text in enumerate(texts)})


def marked(text: str, markers: Markers, family_markers: Sequence[str]) -> str:
    """``text`` with a stand-in for each marker that it spells."""
    for marker in sorted(family_markers, key=len, reverse=True):
        text = text.replace(marker, markers.look(marker))
    return text


def run_marked(
    pieces: Sequence[str],
    tool_parser: str,
    markers: Markers,
    reasoning_parser: str = "none",
    tools: Sequence[Tool] = TOOLS,
    prompt_tail: str = "",
) -> tuple[list[ReplyEvent], ParsedModelOutput]:
    """All events of a reply, adjacent deltas joined, and the whole."""
    family, reasoning = require_tool_family(tool_parser), require_reasoning_family(reasoning_parser)
    opened = reasoning.opened_by(prompt_tail, markers)
    reply = ReplyText(family, reasoning, ReplyContext(tools, markers, opened, prompt_tail))
    batches = [reply.feed(piece) for piece in pieces] + [reply.finish()]
    return merged([event for batch in batches for event in batch]), reply.output()


def by_tokens(
    text: str, tool_parser: str, *, reasoning_parser: str = "none", tools: Sequence[Tool] = TOOLS, seed: int = 0
) -> ParsedModelOutput:
    """What a reply is whose markers are tokens, fed in every way; the events are checked."""
    markers = markers_of(tool_parser, reasoning_parser)
    texts = [*require_tool_family(tool_parser).markers, *require_reasoning_family(reasoning_parser).markers]
    return _read(marked(text, markers, texts), tool_parser, markers, reasoning_parser, tools, seed)


def by_text(
    text: str, tool_parser: str, *, reasoning_parser: str = "none", tools: Sequence[Tool] = TOOLS, seed: int = 0
) -> ParsedModelOutput:
    """The same for a vocabulary without the markers."""
    return _read(text, tool_parser, Markers(), reasoning_parser, tools, seed)


def both_ways(text: str, tool_parser: str, **options: object) -> ParsedModelOutput:
    """``by_tokens`` and ``by_text``, which have to agree."""
    output = by_tokens(text, tool_parser, **options)  # type: ignore[arg-type]
    assert by_text(text, tool_parser, **options) == output  # type: ignore[arg-type]
    return output


def _read(
    text: str, tool_parser: str, markers: Markers, reasoning_parser: str, tools: Sequence[Tool], seed: int
) -> ParsedModelOutput:
    events, output = same_however_fed(
        lambda pieces: run_marked(pieces, tool_parser, markers, reasoning_parser, tools), text, seed
    )
    assert_events_make(events, output)
    return output
