"""What is counted while turns run, in Prometheus' terms. One ``Metrics`` per server, with a registry of its own.

Here is what has to be counted when it happens; what is there anyway (sessions, queue, journal, engines) is read when somebody asks
(``adapter.gauges``). An observation is made once per message of the engine, never per token, and its labels are looked up once per
turn: 2 us a message.

**Labels are few, for good.** Their values come from the code or the configuration, never from a client: the name of a protocol, of
a served model, of a route. Should anything else ever come there, ``Few`` puts it under ``other``. No session is named anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

FEW = 64
"""Values that a label takes at most; more of them would be more series than a Prometheus should be given by one server."""

OTHER = "other"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
_SHORT_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_LAG_SECONDS = (*_SHORT_SECONDS[:5], 0.003, *_SHORT_SECONDS[5:])
_STAGE_SECONDS = (*_SHORT_SECONDS, 10.0, 30.0, 60.0, 300.0)


class Stage(StrEnum):
    """What a turn spends its time on, in this order."""

    QUEUE = "queue"
    """Waiting for a place to run."""
    PREPARE = "prepare"
    """Matching the history, rendering and encoding what is new, a connection to the engine."""
    GENERATE = "generate"
    """From the request to the engine to its last message."""
    COMMIT = "commit"
    """Into the session's tree and the journal's file."""
    JOURNAL = "journal"
    """Until the disk has it."""


class Retry(StrEnum):
    """What a request was given that was there before."""

    JOINED = "joined"
    """A reply that runs."""
    REPLAYED = "replayed"
    """A complete reply whose end nobody had fetched."""


class Few:
    """The first ``FEW`` values of a label, or those that it may have; every other one is ``OTHER``."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values = set(values)

    def __call__(self, value: str) -> str:
        if value not in self._values:
            if len(self._values) >= FEW:
                return OTHER
            self._values.add(value)
        return value


Observe = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class TurnMetrics:
    """What turns of one protocol and model are counted in. Seconds, tokens."""

    ended: Callable[[str], None]
    """By outcome: the finish reason of a recorded turn, or the code of the error that ended it."""
    first_token: Observe
    inter_token: Observe
    continued: Observe
    turn: Observe
    prompt_tokens: Observe
    cached_tokens: Observe
    output_tokens: Observe
    interrupted_tokens: Observe
    ill_formed: Observe
    stages: dict[Stage, Observe]


class Metrics:
    """The counters and histograms of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        self.generating = 0
        """Turns in the stage ``GENERATE``."""
        self._models, self._protocols, self._routes, self._outcomes = Few(), Few(), Few(), Few()
        self._of_turns: dict[tuple[str, str], TurnMetrics] = {}
        of_turn = ["protocol", "model"]
        self._turns = self._counter("turns", "Turns by how they ended.", [*of_turn, "outcome"])
        self._prompt = self._counter("prompt_tokens", "Prompt tokens of recorded turns.", of_turn)
        self._cached = self._counter(
            "cached_prompt_tokens", "Prompt tokens of recorded turns from the engine's KV cache.", of_turn
        )
        self._output = self._counter("output_tokens", "Sampled tokens of recorded turns.", of_turn)
        self._cut = self._counter("interrupted_tokens", "Sampled tokens of turns that were cut off.", of_turn)
        self._continued = self._counter(
            "continuations", "Times that a generation went on elsewhere or after a cut.", of_turn
        )
        self._ill_formed = self._counter("ill_formed_turns", "Recorded turns with an ill-formed tool call.", of_turn)
        self._untrainable = self._counter("untrainable_turns", "Recorded turns that cannot be trained.", ["reason"])
        self._matches = self._counter("history_matches", "Recorded turns by how their history matched.", ["reason"])
        self._differences = self._counter(
            "history_differences", "Replayed messages that were recognised though they differ.", ["difference"]
        )
        self._retries = self._counter("retries", "Requests that were given a reply that was there before.", ["kind"])
        self._requests = self._counter("http_requests", "Answered HTTP requests.", ["method", "route", "status"])
        self.passed_on = self._counter("http_passed_on", "HTTP requests that another worker answered.", [])
        self._first = self._histogram("time_to_first_token", "From the request to its first token.", _SECONDS, of_turn)
        self._gap = self._histogram(
            "inter_token", "Time between two messages of an engine, per token of the second.", _TOKEN_SECONDS, of_turn
        )
        self._turn = self._histogram("turn", "From the request until its turn is durable.", _SECONDS, of_turn)
        self._stage = self._histogram("turn_stage", "A turn's time by what it goes to.", _STAGE_SECONDS, ["stage"])
        self._lag = self._histogram("event_loop_lag", "How late the event loop runs what is due.", _LAG_SECONDS, [])
        self._sync = self._histogram("journal_sync", "One sync of the journal to the disk.", _SHORT_SECONDS, [])

    def of_turns(self, protocol: str, model: str) -> TurnMetrics:
        """Looked up once per turn."""
        key = (self._protocols(protocol), self._models(model))
        found = self._of_turns.get(key)
        if found is None:
            found = self._of_turns[key] = self._resolved(*key)
        return found

    def matched(self, reason: str, differences: Iterable[str] = ()) -> None:
        """A recorded turn's reason code, and how replayed messages differed from what they were."""
        self._matches.labels(reason).inc()
        for difference in differences:
            self._differences.labels(difference).inc()

    def untrainable(self, reason: str) -> None:
        self._untrainable.labels(reason).inc()

    def retried(self, kind: Retry) -> None:
        self._retries.labels(kind).inc()

    def answered(self, method: str, route: str | None, status: int) -> None:
        """An HTTP request. ``route`` as it was registered; None where none takes the request, whatever its method."""
        known = OTHER if route is None else self._routes(route)
        self._requests.labels(OTHER if known is OTHER else method, known, status).inc()

    def loop_lag(self, seconds: float) -> None:
        self._lag.observe(seconds)

    def journal_synced(self, seconds: float) -> None:
        self._sync.observe(seconds)

    def _resolved(self, protocol: str, model: str) -> TurnMetrics:
        def of(metric: Counter) -> Observe:
            return metric.labels(protocol, model).inc

        def seconds(metric: Histogram) -> Observe:
            return metric.labels(protocol, model).observe

        return TurnMetrics(
            ended=partial(self._ended, protocol, model),
            first_token=seconds(self._first),
            inter_token=seconds(self._gap),
            continued=of(self._continued),
            turn=seconds(self._turn),
            prompt_tokens=of(self._prompt),
            cached_tokens=of(self._cached),
            output_tokens=of(self._output),
            interrupted_tokens=of(self._cut),
            ill_formed=of(self._ill_formed),
            stages={stage: self._stage.labels(stage).observe for stage in Stage},
        )

    def _ended(self, protocol: str, model: str, outcome: str) -> None:
        self._turns.labels(protocol, model, self._outcomes(outcome)).inc()

    def _counter(self, name: str, help_text: str, labels: list[str]) -> Counter:
        return Counter(f"rollserve_{name}", help_text, labels, registry=self.registry)

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...], labels: list[str]) -> Histogram:
        return Histogram(f"rollserve_{name}_seconds", help_text, labels, buckets=buckets, registry=self.registry)
