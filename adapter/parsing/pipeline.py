"""Sampled ids to reply events, as they arrive:

    ids ──► detokenize ──► stop strings ──► reasoning ──► tool calls ──► events
                               └──────── stopped: after how many tokens ───┘

Structure tokens go through it as stand-ins (``adapter.parsing.markers``): where the vocabulary has a token for a marker, text that
spells the marker is just text.

The token that ended the reply is not part of its text, except with the parser ``none``, which passes on everything as decoded. Even
there it is left out right behind a tool call, where it would be a visible text of its own. An end token that is a marker of the
format is always given to the parser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tokenizers import Tokenizer

from adapter.parsing.base import ReplyContext
from adapter.parsing.beginning import Beginning
from adapter.parsing.call_limit import CallLimit
from adapter.parsing.choose import ParserChoice
from adapter.parsing.detokenize import SpelledTokens, detokenizer
from adapter.parsing.markers import Markers
from adapter.parsing.reasoning import require_reasoning_family
from adapter.parsing.reply import ReplyText, merged
from adapter.parsing.stop_strings import StopStrings
from adapter.parsing.tools.no_calls import without_calls
from adapter.parsing.tools.registry import require_tool_family
from adapter.types import ParsedModelOutput, ReplyEvent, Tool
from engine.types import FinishReason, Ids


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """How one reply is read."""

    tool_parser: str = "none"
    reasoning_parser: str = "none"
    reasoning_opened: bool = False
    """The prompt ends inside the reasoning."""
    end_ids: Sequence[int] = ()
    """Tokens that end a reply."""
    stop: Sequence[str] = ()
    """The client's stop strings."""
    tools: Sequence[Tool] = ()
    prompt_tail: str = ""
    """The last characters of the prompt, with stand-ins."""
    markers: Markers | None = None
    """Those of the parsers in the tokenizer's vocabulary, if they are known already (``markers_of``)."""
    max_calls: int | None = None
    """Calls that the reply may hold: it ends behind the last of them. With 0, what spells a call is text."""
    spelled: SpelledTokens | None = None
    """What tokens of the vocabulary spell, as far as is known from other replies."""

    @classmethod
    def for_reply(
        cls,
        parsers: ParserChoice,
        markers: Markers,
        *,
        prompt_tail: str,
        end_ids: Sequence[int] = (),
        stop: Sequence[str] = (),
        tools: Sequence[Tool] = (),
        max_calls: int | None = None,
        spelled: SpelledTokens | None = None,
    ) -> PipelineOptions:
        """``prompt_tail``: the end of the rendered prompt, as ``marked_text`` gives it; it may have opened the reasoning."""
        opened = require_reasoning_family(parsers.reasoning_parser).opened_by(prompt_tail, markers)
        return cls(
            parsers.tool_parser, parsers.reasoning_parser, opened, end_ids, stop, tools, prompt_tail, markers, max_calls,
            spelled,
        )  # fmt: skip


def markers_of(tokenizer: Tokenizer, parsers: ParserChoice) -> Markers:
    """What the parsers' markers are in this vocabulary. Reads all of its added tokens. Raises: UnknownParser."""
    families = (require_tool_family(parsers.tool_parser), require_reasoning_family(parsers.reasoning_parser))
    return Markers.of(tokenizer, [text for family in families for text in family.markers])


@dataclass(frozen=True, slots=True)
class StopHit:
    """A stop string ended the reply, or (``stop`` is None) the last call that it may hold."""

    stop: str | None
    tokens: int
    """Output tokens up to and including the one that completed it; what was sampled after them is no part of the reply."""


class Pipeline:
    """One reply. ``begin``, if it goes on from a beginning; ``feed`` ids until ``stopped`` or the engine is done; ``finish`` once.

    Raises: UnknownParser.
    """

    def __init__(self, tokenizer: Tokenizer, options: PipelineOptions) -> None:
        family = require_tool_family(options.tool_parser)
        if options.max_calls == 0:
            family = without_calls(family)
        reasoning = require_reasoning_family(options.reasoning_parser)
        markers = options.markers
        if markers is None:
            markers = markers_of(tokenizer, ParserChoice(options.tool_parser, options.reasoning_parser))
        self.stopped: StopHit | None = None
        self.reasoning_tokens = 0
        """Tokens with some text inside the reasoning, its tags included; a token that also holds visible text counts."""
        self._undecided_tokens = 0
        """Tokens that count as reasoning unless they turn out to be calls."""
        self._shows_end_token = family.shows_end_token
        self._end_ids = frozenset(options.end_ids)
        self._stand_ins = markers.stand_ins
        self._held_end: int | None = None
        self._tokens = 0
        self._limit: CallLimit | None = None
        if options.max_calls:
            self._limit = CallLimit(options.max_calls, [markers.look(closer) for closer in family.closers])
        self._detokenizer = detokenizer(tokenizer, markers.stand_ins, options.spelled)
        self._stops = StopStrings(options.stop, markers)
        context = ReplyContext(options.tools, markers, options.reasoning_opened, options.prompt_tail)
        self._new_reply = partial(ReplyText, family, reasoning, context, options.max_calls or None)
        self._reply = self._new_reply()
        self._beginning: Beginning | None = None

    @property
    def tokens(self) -> int:
        """Tokens of the reply, of those that were read so far."""
        return self._tokens if self._limit is None or self._limit.end is None else self._limit.end

    def begin(self, ids: Ids) -> None:
        """What the reply goes on from: ids (int32 [n]) at the end of the prompt. They complete no events and no stop strings."""
        text = self._detokenizer.feed_all(ids.tolist())
        self._reply.feed(text)
        alone = self._new_reply()
        alone.feed(text)
        alone.finish()
        self._beginning = Beginning(self._reply.output(), alone.output())

    def feed(self, ids: Ids) -> list[ReplyEvent]:
        """The events that these ids (int32 [n]) complete. Ids after a stop string are ignored."""
        tokens: list[int] = ids.tolist()
        if self._held_end is not None and tokens:
            tokens.insert(0, self._held_end)
            self._held_end = None
        if tokens and tokens[-1] in self._end_ids:
            self._held_end = tokens.pop()
        return self._new(merged(self._read(tokens)))

    def finish(self, reason: FinishReason) -> list[ReplyEvent]:
        """The last events. Sets ``stopped`` if a character that was never completed completes a stop string."""
        events: list[ReplyEvent] = []
        if self._held_end is not None and not self._drops_end_token(self._held_end, reason):
            events += self._read([self._held_end])
        events += self._reply.feed(self._past_stops(self._detokenizer.finish()) + self._stops.finish())
        events += self._reply.finish()
        if not self._reply.ends_in_call:
            self.reasoning_tokens += self._undecided_tokens
        return self._new(merged(events))

    def output(self) -> ParsedModelOutput:
        """The reply so far, its beginning included; after ``finish``, the whole."""
        return self._reply.output(self.stopped.stop if self.stopped else None)

    def rest(self) -> ParsedModelOutput:
        """The reply so far without the beginning: what the events amount to."""
        return self.output() if self._beginning is None else self._beginning.rest_of(self.output())

    def _new(self, events: list[ReplyEvent]) -> list[ReplyEvent]:
        return events if self._beginning is None else self._beginning.without(events)

    def _drops_end_token(self, token: int, reason: FinishReason) -> bool:
        if reason is not FinishReason.STOP or token in self._stand_ins:
            return False  # the engine says that this token did not end the reply, or the parser reads it
        return not self._shows_end_token or self._reply.ends_in_call

    def _read(self, tokens: Sequence[int]) -> list[ReplyEvent]:
        if self._reply.settled and self._limit is None and self._stops.none:
            self._tokens += len(tokens)
            return self._reply.feed(self._detokenizer.feed_all(tokens))
        events: list[ReplyEvent] = []
        visible: list[str] = []
        for token in tokens:
            if self.stopped is not None:
                break
            self._tokens += 1
            text = self._past_stops(self._detokenizer.feed(token))
            if self._limit is not None:
                events += self._read_limited(self._limit, text)
            elif self._reply.settled:
                visible.append(text)
            else:
                events += self._read_reasoning(text)
        return events + self._reply.feed("".join(visible))

    def _read_limited(self, limit: CallLimit, text: str) -> list[ReplyEvent]:
        events = self._read_reasoning(text)
        end = limit.reached(text, events, self._tokens)
        if end is not None and self.stopped is None:
            self.stopped = StopHit(None, end)
        return events

    def _read_reasoning(self, text: str) -> list[ReplyEvent]:
        inside = self._reply.inside_reasoning
        events = self._reply.feed(text)
        self._undecided_tokens += inside or self._reply.inside_reasoning
        if not self._reply.undecided:
            self.reasoning_tokens += self._undecided_tokens
            self._undecided_tokens = 0
        return events

    def _past_stops(self, text: str) -> str:
        free = self._stops.feed(text)
        if self._stops.hit is not None and self.stopped is None:
            self.stopped = StopHit(self._stops.hit, self._tokens)
        return free
