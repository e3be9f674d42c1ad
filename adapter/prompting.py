"""From a request to prompt ids: where the trajectory's plan and the renderer meet.

    match    which turns of the session the request goes on from (``adapter.trajectory``)
    render   what is not known: all of it, or an opening, or only the new messages (``adapter.render``)

The prompt is ``render(opening) ++ known ids ++ render(suffix) ++ render(beginning)``, as the plan says; commit compares it with
what was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

import numpy as np

from adapter.errors import BadRequest
from adapter.ids import ReplyIds
from adapter.parsing import (
    Markers,
    ParserChoice,
    Pipeline,
    PipelineOptions,
    SpelledTokens,
    marked_text,
    markers_of,
)
from adapter.protocols.common import manager_message
from adapter.protocols.folding import folded
from adapter.render.closing import SuffixRefused
from adapter.render.prompt import Renderer
from adapter.sessions import Session
from adapter.trajectory import Generation, Head, OpenEnded, Plan, Trajectory
from adapter.trajectory.likeness import differences, is_part
from adapter.types import ChatRequest, HistoryPolicy, Message, ScaffoldSpan, Tool
from engine.types import Ids

OFF_LOOP_CHARACTERS = 16_000
"""What is longer than this is rendered and encoded in a thread: about 4k tokens, 5 ms; a hop costs 0.05 ms."""

TAIL_TOKENS = 32
"""Ids at the end of a prompt that are decoded to see whether it opened the reasoning."""


@dataclass(frozen=True, slots=True)
class PlannedPrompt:
    """The prompt of a turn: ``ids`` int32 [P]."""

    plan: Plan
    ids: Ids
    scaffold: tuple[ScaffoldSpan, ...]
    """Spans over what was rendered last: the whole prompt, or what follows the known ids."""
    opening_tokens: int = 0
    """Tokens of the rendered opening, where known ids follow it."""
    replied: int = 0
    """Tokens at the end that are the beginning of the reply."""


@dataclass(frozen=True, slots=True)
class Prompting:
    """Renderer and parsers of the served model, and the source of the handles that clients replay."""

    model: str
    """The served name: what a request without one means."""
    renderer: Renderer
    parsers: ParserChoice
    ids: ReplyIds
    vocabulary: str = ""
    """Which models' ids mean the same, where several are served (``trajectory.Head``)."""
    markers: Markers = field(init=False)
    """The parsers' markers in the vocabulary; looked up once."""
    spelled: SpelledTokens = field(init=False, compare=False)
    """What its tokens spell, for all replies."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "spelled", SpelledTokens(self.renderer.tokenizer))
        object.__setattr__(self, "markers", markers_of(self.renderer.tokenizer, self.parsers))

    def told(self, request: ChatRequest) -> ChatRequest:
        """``request``, with the fields listed as of no effect that set only what the template does not read."""
        reads = self.renderer.template.reads
        fields = dict.fromkeys(field for option, field in request.option_fields.items() if not reads(option))
        return replace(request, unused_fields=(*request.unused_fields, *fields)) if fields else request

    async def prompt(self, session: Session, request: ChatRequest) -> PlannedPrompt:
        """Match the request in its session and render what is new. Changes nothing. Raises: BadRequest."""
        plan = self._match(session, request)
        if _characters((*plan.opening, *plan.suffix), request.tools if plan.opening else ()) > OFF_LOOP_CHARACTERS:
            return await asyncio.to_thread(self._render, plan, request)
        return self._render(plan, request)

    async def full_prompt(self, request: ChatRequest) -> Ids:
        """The prompt of a request that belongs to no session. Raises: BadRequest."""
        plan = Trajectory(policy=HistoryPolicy.KEEP).match(request.messages, continues=self._open_ended(request))
        if _characters(request.messages, request.tools) > OFF_LOOP_CHARACTERS:
            return (await asyncio.to_thread(self._render, plan, request)).ids
        return self._render(plan, request).ids

    def pipeline(self, prompt_ids: Ids, request: ChatRequest, stop: tuple[str, ...], replied: int = 0) -> Pipeline:
        """What reads a reply to this prompt, the last ``replied`` tokens of which are the reply's beginning."""
        prompt_ids, begun = np.split(prompt_ids, [prompt_ids.size - replied])
        options = PipelineOptions.for_reply(
            self.parsers,
            self.markers,
            prompt_tail=self.tail(prompt_ids),
            end_ids=self.renderer.end_ids,
            stop=stop,
            tools=(*request.tools, *request.deferred_tools),
            max_calls=request.max_calls,
            spelled=self.spelled,
        )
        pipeline = Pipeline(self.renderer.tokenizer, options)
        if replied:
            pipeline.begin(begun)
        return pipeline

    def tail(self, prompt_ids: Ids) -> str:
        """The end of a prompt, with stand-ins."""
        return marked_text(self.renderer.tokenizer, self.markers, prompt_ids[-TAIL_TOKENS:].tolist(), self.spelled)

    def _match(self, session: Session, request: ChatRequest) -> Plan:
        def recut(turn: Generation, message: Message) -> int | None:
            return self._recut(turn, message, request)

        head = self._head(request, session.trajectory.policy)
        refs = _Refs(request.handles, lambda handles: self._turns(session.sid, handles))
        return session.trajectory.match(
            request.messages, head=head, refs=refs, recut=recut, continues=self._open_ended(request)
        )

    def _head(self, request: ChatRequest, policy: HistoryPolicy) -> Head:
        if policy is HistoryPolicy.TEMPLATE:
            return Head.of(model=self.model, vocabulary=self.vocabulary) if self.vocabulary else Head()
        options = self.renderer.template.read_options(request.template_options)
        return Head.of(request.tools, request.model or self.model, options, self.vocabulary)

    def _open_ended(self, request: ChatRequest) -> OpenEnded | None:
        """Which replies can be gone on from, if the request goes on from one. Raises: BadRequest."""
        if not request.continues:
            return None
        if request.messages[-1].get("tool_calls"):
            raise BadRequest(
                "an assistant message that calls tools cannot be continued; add their results", field="messages"
            )
        return lambda turn: not turn.output.size or int(turn.output[-1]) not in self.renderer.end_ids

    def _turns(self, sid: str, handles: Iterable[str]) -> frozenset[int]:
        """The turns that these handles refer to, those left out that are not ours."""
        return frozenset(turn for handle in handles if (turn := self.ids.turn_of(sid, handle)) is not None)

    def _render(self, plan: Plan, request: ChatRequest) -> PlannedPrompt:
        if plan.goes_on is not None:
            reply = plan.goes_on
            return PlannedPrompt(plan, plan.known_ids(), (), replied=reply.replied + int(reply.output.size))
        prompt = self._render_messages(plan, request)
        if plan.beginning is None:
            return prompt
        begun = self.renderer.beginning(plan.beginning, request.template_options)
        return replace(prompt, ids=np.concatenate([prompt.ids, begun]), replied=int(begun.size))

    def _render_messages(self, plan: Plan, request: ChatRequest) -> PlannedPrompt:
        previous = plan.previous
        if previous is None:
            whole = self.renderer.prompt(plan.opening, request.tools, request.template_options)
            return PlannedPrompt(plan, whole.ids, whole.scaffold)
        try:
            suffix = self.renderer.suffix(
                plan.suffix,
                request.tools,
                request.template_options,
                output_tail=previous.output,
                called=_called(plan.messages[: len(plan.messages) - len(plan.suffix)]),
            )
        except SuffixRefused:
            return self._render_messages(plan.full_render(), request)
        pieces = [plan.known_ids(), suffix.ids]
        opening_tokens = 0
        if plan.opening:
            opening = self.renderer.prompt(plan.opening, request.tools, request.template_options).ids
            opening_tokens = int(opening.size)
            pieces.insert(0, opening)
        return PlannedPrompt(plan, np.concatenate(pieces), suffix.scaffold, opening_tokens)

    def _recut(self, turn: Generation, message: Message, request: ChatRequest) -> int | None:
        """How many output tokens of a reply that was cut off a client's message is; None if that is no token boundary.

        What a client was given grows with the tokens, so the shortest part that holds the message is found by halving.
        """
        prompt = turn.prompt_ids()

        def given(tokens: int) -> Message:
            pipeline = self.pipeline(prompt, request, (), turn.replied)
            pipeline.feed(turn.output[:tokens])
            return manager_message(pipeline.output())

        low, high = 0, int(turn.output.size)
        if not is_part(given(high), message):
            return None
        while low < high:
            middle = (low + high) // 2
            if is_part(given(middle), message):
                high = middle
            else:
                low = middle + 1
        return low if differences(given(low), message, repaired=True) is not None else None


@dataclass(frozen=True, slots=True)
class _Refs(Sequence[Collection[int]]):
    """The turns that each message refers to, found out when asked: of a history that is known nearly none is."""

    handles: tuple[tuple[str, ...], ...]
    turns: Callable[[Iterable[str]], frozenset[int]]

    def __len__(self) -> int:
        return len(self.handles)

    @overload
    def __getitem__(self, index: int) -> Collection[int]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Collection[int]]: ...

    def __getitem__(self, index: int | slice) -> Collection[int] | Sequence[Collection[int]]:
        if isinstance(index, slice):
            return _Refs(self.handles[index], self.turns)
        return self.turns(self.handles[index])


def for_policy(policy: HistoryPolicy, request: ChatRequest) -> ChatRequest:
    """Under ``template`` system messages inside the history are folded into it; under ``keep`` they stay where they stand."""
    return folded(request) if policy is HistoryPolicy.TEMPLATE else request


def _called(messages: tuple[Message, ...]) -> tuple[str, ...]:
    """Names of the tools that the last of these messages calls."""
    calls = messages[-1].get("tool_calls", ()) if messages else ()
    return tuple(call["function"]["name"] for call in calls)


def _characters(messages: Iterable[Message], tools: Iterable[Tool]) -> int:
    return sum(len(str(message.get("content", ""))) for message in messages) + sum(len(str(tool)) for tool in tools)
