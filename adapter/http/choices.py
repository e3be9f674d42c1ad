"""Replies that hold several choices, and replies that report their tokens' log probs.

Each choice is a turn of its own, sampled beside the others from the same prompt: siblings in the session's tree. All of them are
prepared before any is sampled, run at once, and are committed as they end; the reply is complete when the last one is. One that
fails takes the reply with it: the others are cut off, and those that were complete stay turns.

The usage counts the prompt once, as the first choice found it, and what was sampled for all choices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing, contextmanager
from typing import Any

from adapter.http.making import ReplyMaker, debug_headers, log_turn
from adapter.jsontext import dump_json
from adapter.metrics import Stage
from adapter.parsing import token_bytes
from adapter.preparing import prepare_turn
from adapter.protocols.base import Choice, ChoiceStream, ManyChoices
from adapter.reply import LiveReply
from adapter.turn import Turn, TurnOutcome
from adapter.types import TokenLogProb, Usage
from adapter.watching import TurnWatch


class ChoicesMaker(ReplyMaker):
    """Makes a reply to a request with ``n`` above 1 or ``log_probs``, in a protocol that is ``ManyChoices``."""

    async def _make(self, reply: LiveReply) -> None:
        count = self._chat.n
        services = self._services
        assert isinstance(self._protocol, ManyChoices)
        make = self._stream_choices if self._chat.stream else self._whole_choices
        with self._watched(reply, count) as watches, self._session.turn_in_flight(services.config, count) as first:
            async with AsyncExitStack() as stack:
                with _stage(watches, Stage.QUEUE):
                    await stack.enter_async_context(services.admission.places(count))
                with _stage(watches, Stage.PREPARE):
                    turns = [await self._prepared(first + at, watch, at) for at, watch in enumerate(watches)]
                await make(self._protocol, turns, reply)
            for turn in turns:
                log_turn(self._protocol.name, turn)

    async def _prepared(self, number: int, watch: TurnWatch, choice: int) -> Turn:
        return await prepare_turn(self._services, self._session, number, self._chat, self._label, watch, choice)

    async def _stream_choices(self, protocol: ManyChoices, turns: Sequence[Turn], reply: LiveReply) -> None:
        streams = [
            protocol.choice_stream(
                self._chat, index=index, reply_id=self.reply_id, model=self.model, ids=turn.ids, created=self.created
            )
            for index, turn in enumerate(turns)
        ]
        reply.begin(debug_headers(turns[0]), keepalive=streams[0].keepalive(), render_error=streams[0].error)
        reply.append(
            b"".join(stream.start(int(turn.prompt.ids.size)) for stream, turn in zip(streams, turns, strict=True))
        )
        await _all(self._follow(turn, stream, reply) for turn, stream in zip(turns, streams, strict=True))
        await self._commit(reply, streams[0].end(_total(turns)))

    async def _follow(self, turn: Turn, frames: ChoiceStream, reply: LiveReply) -> None:
        async with aclosing(turn.events()) as batches:
            async for batch in batches:
                frames.add_tokens(self._tokens(turn))
                outcome = turn.outcome
                end = b"" if outcome is None else frames.end_choice(outcome.parsed, outcome.reason)
                reply.append(frames.events(batch) + end)

    async def _whole_choices(self, protocol: ManyChoices, turns: Sequence[Turn], reply: LiveReply) -> None:
        reply.begin(debug_headers(turns[0]))
        await _all(_run(turn) for turn in turns)
        body = protocol.render_choices(
            [self._choice(turn) for turn in turns],
            reply_id=self.reply_id,
            model=self.model,
            usage=_total(turns),
            created=self.created,
        )
        await self._commit(reply, dump_json(body))

    async def _commit(self, reply: LiveReply, end: bytes) -> None:
        """The turns are recorded; now the reply is, for a client that asks for it again."""
        record = self._recorded(reply, end)
        if record is not None:
            self._session.recorder.reply(self._session.sid, record)
            await self._session.recorder.settled()
        reply.commit(end)

    def _choice(self, turn: Turn) -> Choice:
        outcome = _outcome(turn)
        made = self._protocol.reply(outcome.parsed, outcome.reason, turn.ids, self._chat)
        return Choice(made, self._tokens(turn) if self._chat.log_probs else None)

    def _tokens(self, turn: Turn) -> list[TokenLogProb]:
        tokenizer = self._services.models.find(self._chat.model).renderer.tokenizer
        return [TokenLogProb(token_bytes(tokenizer, token), log_prob) for token, log_prob in turn.take_tokens()]


@contextmanager
def _stage(watches: Iterable[TurnWatch], stage: Stage) -> Iterator[None]:
    """What turns do together."""
    with ExitStack() as stack:
        for watch in watches:
            stack.enter_context(watch.stage(stage))
        yield


async def _run(turn: Turn) -> None:
    async with aclosing(turn.events()) as batches:
        async for _ in batches:
            pass


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all at once; when one fails the others are cancelled and its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _outcome(turn: Turn) -> TurnOutcome:
    assert turn.outcome is not None
    return turn.outcome


def _total(turns: Sequence[Turn]) -> Usage:
    usages = [_outcome(turn).usage for turn in turns]
    return Usage(
        input_tokens=usages[0].input_tokens,
        output_tokens=sum(usage.output_tokens for usage in usages),
        cached_tokens=usages[0].cached_tokens,
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
    )
