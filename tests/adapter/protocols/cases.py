"""Replies that every protocol renders: as neutral events, as a whole, and as golden wire text under ``tests/golden/PROTOCOL``.

``NAME.json`` is the whole body, ``NAME.sse`` the stream. Ids are numbered in the order in which a reply asks for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson
from hypothesis import HealthCheck, settings

from adapter.errors import AdapterError, UpstreamFailed
from adapter.protocols.anthropic import AnthropicMessages
from adapter.protocols.base import Choice, WireProtocol
from adapter.protocols.gemini import Gemini
from adapter.protocols.openai_chat import OpenAIChat
from adapter.protocols.openai_responses import OpenAIResponses
from adapter.types import (
    ChatRequest,
    ParsedModelOutput,
    ReasoningDelta,
    ReplyEvent,
    TextDelta,
    TokenLogProb,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolUse,
    Usage,
)
from engine.types import FinishReason

GOLDEN = Path(__file__).parents[2] / "golden"
MODEL = "slime-actor"
CREATED = 1_700_000_000

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A property test must not fail because the machine is busy."""

PROTOCOLS: dict[str, WireProtocol] = {
    "anthropic": AnthropicMessages(),
    "openai_chat": OpenAIChat(),
    "openai_responses": OpenAIResponses(),
    "gemini": Gemini(),
}


class NumberedIds:
    """``prefix`` and a running number, zero-padded to the length asked for: the order of asking shows."""

    def __init__(self) -> None:
        self._count = 0

    def new(self, prefix: str, length: int) -> str:
        self._count += 1
        return prefix + str(self._count).zfill(length)


@dataclass(frozen=True)
class Case:
    """One reply. ``batches`` are the events as the engine's messages bring them; ``error`` ends the stream in place of a finish."""

    batches: tuple[tuple[ReplyEvent, ...], ...]
    parsed: ParsedModelOutput
    usage: Usage
    reason: FinishReason = FinishReason.STOP
    error: AdapterError | None = None
    include_usage: bool = True
    silent_after: int | None = None
    """A keepalive goes out after this many batches."""


LIST = ToolUse("list_files", {"path": "src", "depth": 2})
READ = ToolUse("read_file", {"path": "说明.md"})


def call_events(use: ToolUse) -> tuple[ReplyEvent, ...]:
    """A whole call at once."""
    return ToolCallStart(use.name), ToolCallDelta(orjson.dumps(use.input).decode()), ToolCallEnd(use)


CASES: dict[str, Case] = {
    "text": Case(
        batches=((TextDelta("这是一个学习"),), (), (TextDelta("项目。<|im_end|>"),)),
        parsed=ParsedModelOutput(text="这是一个学习项目。<|im_end|>"),
        usage=Usage(218, 5),
    ),
    "thinking_text_tools": Case(
        batches=(
            (ReasoningDelta("First the folder,\n"),),
            (ReasoningDelta("then the file."), TextDelta("I look ")),
            (TextDelta('at "src".'), ToolCallStart("list_files"), ToolCallDelta('{"path":"src",')),
            (ToolCallDelta('"depth":2}'), ToolCallEnd(LIST), ToolCallStart("read_file")),
            (ToolCallDelta('{"path":"说明.md"}'), ToolCallEnd(READ)),
        ),
        parsed=ParsedModelOutput("First the folder,\nthen the file.", 'I look at "src".', (LIST, READ)),
        usage=Usage(input_tokens=1200, output_tokens=64, cached_tokens=1024, reasoning_tokens=9),
        silent_after=2,
    ),
    "tool_without_arguments": Case(
        batches=((ToolCallStart("now"), ToolCallEnd(ToolUse("now", {}))),),
        parsed=ParsedModelOutput(tool_uses=(ToolUse("now", {}),)),
        usage=Usage(40, 7),
    ),
    "length": Case(
        batches=((ReasoningDelta("Hm"),), (TextDelta("The answer is"),)),
        parsed=ParsedModelOutput(reasoning="Hm", text="The answer is"),
        usage=Usage(30, 4, reasoning_tokens=1),
        reason=FinishReason.LENGTH,
    ),
    "stop_sequence": Case(
        batches=((TextDelta("one, two"),),),
        parsed=ParsedModelOutput(text="one, two", stop_sequence=", three"),
        usage=Usage(30, 6),
    ),
    "empty": Case(batches=((),), parsed=ParsedModelOutput(), usage=Usage(30, 1)),
    "no_usage": Case(
        batches=((TextDelta("hello"),),),
        parsed=ParsedModelOutput(text="hello"),
        usage=Usage(12, 2),
        include_usage=False,
    ),
    # The next three are what tests.adapter.test_family_wire reads from every family's markup, at once.
    "turn_thinking_text_calls": Case(
        batches=(
            (
                ReasoningDelta("First the folder,\nthen the file."),
                TextDelta('I look at "src".'),
                *call_events(LIST),
                *call_events(READ),
            ),
        ),
        parsed=ParsedModelOutput("First the folder,\nthen the file.", 'I look at "src".', (LIST, READ)),
        usage=Usage(input_tokens=1200, output_tokens=64, cached_tokens=1024, reasoning_tokens=9),
    ),
    "turn_calls": Case(
        batches=((*call_events(LIST), *call_events(READ)),),
        parsed=ParsedModelOutput(tool_uses=(LIST, READ)),
        usage=Usage(1200, 40),
    ),
    "turn_text": Case(
        batches=((TextDelta("两个文件：\n- a.py\n- b.py"),),),
        parsed=ParsedModelOutput(text="两个文件：\n- a.py\n- b.py"),
        usage=Usage(1300, 12),
    ),
    "error": Case(
        batches=((TextDelta("one"),),),
        parsed=ParsedModelOutput(text="one"),
        usage=Usage(30, 1),
        error=UpstreamFailed('the engine: it said "no"'),
    ),
}

COMPLETE = tuple(name for name, case in CASES.items() if case.error is None)


CHOICES = ("thinking_text_tools", "length")
"""Cases that are one reply together, in protocols that can have several choices."""


def tokens_of(case: Case) -> list[TokenLogProb]:
    """Two tokens for each batch, the first of them half a character."""
    made = []
    for at in range(len(case.batches)):
        made += [TokenLogProb("项".encode()[:2], -at - 0.5), TokenLogProb("项".encode()[2:] + b" a", -at - 0.25)]
    return made


def whole_choices(protocol: OpenAIChat | Gemini) -> bytes:
    """``CHOICES`` as one body, with log probs."""
    ids = NumberedIds()
    reply_id = protocol.new_reply_id(ids)
    made = [
        Choice(protocol.reply(case.parsed, case.reason, ids), tokens_of(case))
        for case in (CASES[name] for name in CHOICES)
    ]
    body = protocol.render_choices(made, reply_id=reply_id, model=MODEL, usage=CASES["text"].usage, created=CREATED)
    return orjson.dumps(body)


def streamed_choices(protocol: OpenAIChat | Gemini) -> bytes:
    """``CHOICES`` as one stream, a batch of each in turn, with log probs."""
    ids = NumberedIds()
    reply_id = protocol.new_reply_id(ids)
    request = ChatRequest(messages=(), stream=True, n=len(CHOICES), log_probs=True)
    cases = [CASES[name] for name in CHOICES]
    streams = [
        protocol.choice_stream(request, index=index, reply_id=reply_id, model=MODEL, ids=ids, created=CREATED)
        for index in range(len(cases))
    ]
    frames = [stream.start(case.usage.input_tokens) for stream, case in zip(streams, cases, strict=True)]
    for number in range(max(len(case.batches) for case in cases)):
        for stream, case in zip(streams, cases, strict=True):
            if number < len(case.batches):
                stream.add_tokens(tokens_of(case)[2 * number : 2 * number + 2])
                frames.append(stream.events(case.batches[number]))
    frames += [stream.end_choice(case.parsed, case.reason) for stream, case in zip(streams, cases, strict=True)]
    return b"".join([*frames, streams[0].end(CASES["text"].usage)])


def whole(protocol: WireProtocol, case: Case) -> bytes:
    """The reply as the body of a response."""
    ids = NumberedIds()
    reply_id = protocol.new_reply_id(ids)
    reply = protocol.reply(case.parsed, case.reason, ids)
    return orjson.dumps(protocol.render_body(reply, reply_id=reply_id, model=MODEL, usage=case.usage, created=CREATED))


def streamed(protocol: WireProtocol, case: Case) -> bytes:
    """The reply as the bytes of a stream."""
    ids = NumberedIds()
    request = ChatRequest(messages=(), stream=True, include_usage=case.include_usage)
    stream = protocol.stream(request, reply_id=protocol.new_reply_id(ids), model=MODEL, ids=ids, created=CREATED)
    frames = [stream.start(case.usage.input_tokens)]
    for number, batch in enumerate(case.batches, start=1):
        frames.append(stream.events(batch))
        if number == case.silent_after:
            frames.append(stream.keepalive())
    frames.append(stream.error(case.error) if case.error else stream.finish(case.parsed, case.reason, case.usage))
    return b"".join(frames)
