"""One turn as an operator sees it: what is counted of it, and its trace.

The code that runs a turn tells a ``TurnWatch`` what happens, and nothing else; whether anybody looks makes no difference to it.
With traces off that costs 30 microseconds per turn, and two per message of the engine.

    with watch.stage(Stage.PREPARE): ...
    watch.sampled(chunk)                      each message of the engine
    watch.committed(...), watch.cut(...)      recorded; or cut off, with so many tokens kept aside
    watch.durable()                           the disk has it
    watch.ended(outcome)                      however it ended; the first call counts
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from adapter.metrics import Metrics, Stage, TurnMetrics
from adapter.tracing import NoTracer, Tracer, TurnTrace
from adapter.trajectory import Plan
from adapter.types import TurnRecord
from engine.types import GenerateRequest, TokenChunk

CLIENT_GONE = "client_gone"
INTERRUPTED = "interrupted"
FAULT = "fault"
"""Outcomes of turns that are neither a finish reason nor the code of an error."""


class TurnWatch:
    """Of one turn, from the request on."""

    def __init__(
        self, metrics: Metrics, of_turns: TurnMetrics, trace: TurnTrace, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._metrics = metrics
        self._counts = of_turns
        self._trace = trace
        self._clock = clock
        self._began = clock()
        self._last_message: float | None = None
        self._segment = 0
        self._over = False
        self._recorded = False

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        """Time what is done inside."""
        began = self._clock()
        self._trace.begin(stage)
        generates = stage is Stage.GENERATE
        self._metrics.generating += generates
        try:
            yield
        except BaseException as error:
            self._trace.end(error)
            raise
        else:
            self._trace.end()
        finally:
            self._metrics.generating -= generates
            self._counts.stages[stage](self._clock() - began)

    def prepared(self, request: GenerateRequest, reason: str) -> None:
        self._trace.prepared(request, reason)

    def sampled(self, chunk: TokenChunk) -> None:
        """The next message of the engine."""
        if chunk.segment != self._segment:
            self._segment = chunk.segment
            self._counts.continued(1)
            self._trace.end()
            self._trace.begin(Stage.GENERATE)
        count = len(chunk.ids)
        if not count:
            return
        now = self._clock()
        if self._last_message is None:
            self._counts.first_token(now - self._began)
            self._trace.first_token(now - self._began)
        else:
            self._counts.inter_token((now - self._last_message) / count)
        self._last_message = now

    def committed(self, record: TurnRecord, reason: str, plan: Plan) -> None:
        """The turn is recorded; its history was recognised by ``plan``."""
        self._recorded = True
        counts = self._counts
        counts.ended(str(record.finish_reason))
        counts.prompt_tokens(len(record.prompt_ids))
        counts.cached_tokens(record.cached_tokens)
        counts.output_tokens(len(record.output_ids))
        if record.ill_formed:
            counts.ill_formed(1)
        if record.untrainable is not None:
            self._metrics.untrainable(record.untrainable)
        differences = [str(each) for _, finding in plan.recognised for each in finding.differences]
        self._metrics.matched(reason, differences)
        self._trace.committed(record)

    def cut(self, tokens: int) -> None:
        """The turn was cut off; so many of its tokens are kept aside."""
        self._counts.interrupted_tokens(tokens)

    def durable(self) -> None:
        self._counts.turn(self._clock() - self._began)

    def ended(self, outcome: str) -> None:
        """``outcome`` counts unless the turn was recorded: then its finish reason did."""
        if self._over:
            return
        self._over = True
        if not self._recorded:
            self._counts.ended(outcome)
        self._trace.ended(None if self._recorded else outcome)


@dataclass(frozen=True, slots=True)
class Watching:
    """Where turns get their watches from."""

    metrics: Metrics = field(default_factory=Metrics)
    tracer: Tracer = field(default_factory=NoTracer)

    def turn(self, protocol: str, model: str, headers: Mapping[str, str] | None = None) -> TurnWatch:
        """``headers`` of the request may say which trace it belongs to."""
        trace = self.tracer.turn(protocol, model, headers or {})
        return TurnWatch(self.metrics, self.metrics.of_turns(protocol, model), trace)
