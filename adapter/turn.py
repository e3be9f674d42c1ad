"""The one use case: a request of a client becomes a generation, its reply, and a turn of the session's trajectory.

    prepare   everything that can be refused: sampling, rendering, the context; gives a ``Turn`` (``adapter.preparing``)
    events    run the generation; each batch holds what one message of the engine made visible
    commit    one synchronous call when the last chunk is in, before the last batch leaves ``events``

A client that goes away cancels the task that iterates; closing ``events`` closes the engine's iterator, which cancels the
generation. Before the commit that leaves no turn, only what was sampled, set aside; after it the turn is recorded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

from adapter.errors import (
    AdapterError,
    Interrupted,
    Unavailable,
    UpstreamFailed,
    from_engine,
)
from adapter.logs import event
from adapter.metrics import Stage
from adapter.prompting import PlannedPrompt
from adapter.protocols.common import manager_message
from adapter.records import Answered
from adapter.sampled import Sampled
from adapter.sampling import EffectiveSampling
from adapter.served import ServedModel
from adapter.sessions import Session
from adapter.trajectory import reason_of
from adapter.types import (
    ChatRequest,
    Label,
    ParsedModelOutput,
    ReplyEvent,
    Sampling,
    TurnRecord,
    Usage,
)
from adapter.watching import TurnWatch
from engine.errors import EngineError
from engine.types import FinishReason, GenerateRequest, TokenChunk

logger = logging.getLogger("rollserve.turn")

SUSPECT_ZERO_TOKENS = 16
"""This many tokens sampled at a temperature above 0, all with log prob 0.0: the engine is not giving log probs at all."""

NO_TOOL_FORMAT = "tools: the chat template writes no calls in a known format; see --tool-parser and --chat-template"


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """A committed turn, for the client."""

    parsed: ParsedModelOutput
    reason: FinishReason
    usage: Usage


Complete = Callable[[TurnOutcome, list[ReplyEvent]], Answered]
"""Given the outcome and the last events of a turn that is about to be committed: the answer as it is recorded with it."""


def _nothing_to_record(outcome: TurnOutcome, events: list[ReplyEvent]) -> Answered:
    return Answered()


class Turn:
    """One turn in flight. ``outcome`` is set once it is committed."""

    def __init__(
        self,
        model: ServedModel,
        session: Session,
        request: ChatRequest,
        label: Label,
        prompt: PlannedPrompt,
        generate: GenerateRequest,
        sampling: EffectiveSampling,
        watch: TurnWatch,
    ) -> None:
        self.session = session
        self.request = request
        self.prompt = prompt
        self.sampling = sampling
        self.number = generate.turn
        self.ids = model.prompting.ids.for_turn(session.sid, generate.turn)
        """The source of the ids in this reply."""
        self.reason = reason_of(prompt.plan, prompt.ids)
        """How its history was recognised."""
        self.outcome: TurnOutcome | None = None
        self.warning = None if model.prompting.parsers.tool_format_known or not request.tools else NO_TOOL_FORMAT
        """What the client should know though its request is served."""
        self._model = model
        self._label = label
        self._generate = generate
        self._watch = watch
        self._sampled = Sampled(told=request.log_probs)
        self._started_at = time.time()
        self._pipeline = model.prompting.pipeline(prompt.ids, request, request.stop, prompt.replied)
        watch.prepared(generate, self.reason)

    async def events(self, complete: Complete = _nothing_to_record) -> AsyncGenerator[list[ReplyEvent], None]:
        """Batches of reply events as tokens arrive; the turn is committed when the last batch is given, and durable at the end.

        ``complete`` is called before the commit, and gives what is to be recorded of the reply. Raises: AdapterError, if the engine
        fails or the turn cannot be recorded. Then, and if it is closed early, what was sampled is kept as an interrupted turn.
        """
        feed = self.session.feed
        feed.began(self.number, self.prompt.plan)
        error: AdapterError = Interrupted("the turn was stopped before its end")
        try:
            # Closed with this generator, not when the garbage collector finds it: that is what frees the engine's slot at once.
            async with aclosing(self._run(complete)) as batches:
                async for batch in batches:
                    feed.said(self.number, batch)
                    yield batch
        except AdapterError as failure:
            error = failure
            raise
        finally:
            if self.outcome is None:
                self._keep_interrupted()
            feed.ended(self.number, error if self.outcome is None else None)

    def take_tokens(self) -> list[tuple[int, float]]:
        """What was sampled since the last call of this, with log probs; only for a request that asked for them."""
        return self._sampled.take(self._pipeline.tokens if self.outcome is None else self.outcome.usage.output_tokens)

    async def _run(self, complete: Complete) -> AsyncGenerator[list[ReplyEvent], None]:
        with self._generating():
            async with aclosing(self._model.engine.generate(self._generate)) as chunks:
                async for chunk in chunks:
                    self._watch.sampled(chunk)
                    self._sampled.add(chunk)
                    events = self._pipeline.feed(chunk.ids)
                    if chunk.finished is not None or self._pipeline.stopped is not None:
                        break
                    if events:
                        yield events
                else:
                    raise UpstreamFailed("the engine ended the reply without saying why")
        events += self._pipeline.finish(self._finish_reason(chunk))
        reason = self._finish_reason(chunk)  # again: what finish flushed may have completed a stop string
        with self._watch.stage(Stage.COMMIT):
            self._commit(reason, events, complete)
        yield events
        with self._watch.stage(Stage.JOURNAL):
            await self.session.recorder.settled()
        self._watch.durable()

    @contextmanager
    def _generating(self) -> Iterator[None]:
        """While the engine works. Raises: AdapterError, for its failures."""
        try:
            with self._watch.stage(Stage.GENERATE):
                yield
        except EngineError as error:
            raise from_engine(error) from error

    def _finish_reason(self, last: TokenChunk) -> FinishReason:
        if self._pipeline.stopped is not None:
            return FinishReason.STOP
        assert last.finished is not None
        if last.finished.reason is FinishReason.CANCELLED:
            raise UpstreamFailed("the engine cancelled the reply")
        return last.finished.reason

    def _commit(self, reason: FinishReason, events: list[ReplyEvent], complete: Complete) -> None:
        """Record the turn. Synchronous: nothing can come between the last token and the record. Raises: Unavailable."""
        parsed = self._pipeline.output()
        record = self._record(reason, parsed.ill_formed)
        usage = Usage(
            input_tokens=int(self.prompt.ids.size),
            output_tokens=int(record.output_ids.size),
            cached_tokens=record.cached_tokens,
            reasoning_tokens=self._pipeline.reasoning_tokens,
        )
        outcome = TurnOutcome(self._pipeline.rest(), reason, usage)
        answered = complete(outcome, events)
        session = self.session
        session.trajectory.commit(
            self.prompt.plan,
            record,
            manager_message(parsed),
            {"sid": session.sid},
            number=self.number,
            opening_tokens=self.prompt.opening_tokens,
            save=lambda saved: session.record(saved, answered),
        )
        self.outcome = outcome
        self._watch.committed(record, self.reason, self.prompt.plan)
        base = self.prompt.plan.base
        if base is not None and base.number is not None:
            session.replies.gone_on_from(base.number)

    def _keep_interrupted(self) -> None:
        """A client may replay what it was given of a cut reply; then that part becomes its turn."""
        if not self._sampled:
            return
        self._watch.cut(self._sampled.count)
        session = self.session
        try:
            session.trajectory.record_interrupted(
                self.prompt.plan,
                self._record(FinishReason.CANCELLED, ill_formed=False),
                manager_message(self._pipeline.output()),
                number=self.number,
                opening_tokens=self.prompt.opening_tokens,
                save=session.record_interrupted,
            )
        except Unavailable as error:
            # No turn is lost by this: a client that goes on from the part is taken to have written it.
            event(logger, logging.WARNING, "interrupted_not_recorded", sid=session.sid, message=str(error))

    def _record(self, reason: FinishReason, ill_formed: bool) -> TurnRecord:
        stopped = self._pipeline.stopped
        kept = stopped.tokens if stopped is not None else self._sampled.count
        log_probs = self._sampled.log_probs(kept)
        params = self._generate.sampling
        mode = self._model.engine.info.log_prob_mode
        suspect = params.temperature > 0 and params.top_k != 1 and kept >= SUSPECT_ZERO_TOKENS and not log_probs.any()
        return TurnRecord(
            prompt_ids=self.prompt.ids,
            output_ids=self._sampled.ids(kept),
            output_log_probs=log_probs,
            finish_reason=reason,
            ill_formed=ill_formed,
            untrainable="suspect_logprobs" if suspect else None,
            versions=self._sampled.versions(kept),
            segments=self._sampled.segments(kept),
            sampling=Sampling(params, self._generate.max_tokens, mode, self._generate.guide, self._model.name),
            cached_tokens=self._sampled.cached_tokens,
            started_at=self._started_at,
            finished_at=time.time(),
            replied=self.prompt.replied,
            scaffold=self.prompt.scaffold,
            normalised=self.request.normalised,
            label=self._label,
        )
