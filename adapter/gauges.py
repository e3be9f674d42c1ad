"""What is there anyway, read when somebody asks for the metrics: sessions, queue, buffers, journal, engines.

It costs a microsecond or two per session in memory and scrape, and nothing in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Protocol, runtime_checkable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from adapter.admission import Admission
from adapter.recorder import JournalRecorder, Recorder
from adapter.served import ServedModel, ServedModels
from adapter.session import Session, SessionState
from adapter.sessions import Sessions
from adapter.storage.frames import FrameKind
from adapter.tally import SessionEvent
from engine.breaker import BreakerState
from engine.endpoint import EndpointState

SESSIONS_AT_ONCE = 250
"""Half a millisecond on the loop."""


@runtime_checkable
class Pooled(Protocol):
    """An engine that has endpoints: ``engine.pool.Pool``."""

    @property
    def held(self) -> bool: ...

    def endpoints(self) -> tuple[EndpointState, ...]: ...


def gauge(name: str, help_text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"rollserve_{name}", help_text, value=value)


def gauges(name: str, help_text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """One series for each value of ``label``."""
    family = GaugeMetricFamily(f"rollserve_{name}", help_text, labels=[label])
    for each, value in values.items():
        family.add_metric([each], value)
    return family


def counter(name: str, help_text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"rollserve_{name}", help_text, value=value)


def counters(name: str, help_text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    """One series for each value of ``label``."""
    family = CounterMetricFamily(f"rollserve_{name}", help_text, labels=[label])
    for each, value in values.items():
        family.add_metric([each], value)
    return family


@dataclass(slots=True)
class SessionTotal:
    """Of the sessions in memory; all but ``states`` in bytes."""

    states: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("idle", "running", "finishing"), 0))
    size: int = 0
    running_bytes: int = 0
    """Events of replies that run."""
    feed_bytes: int = 0

    def add(self, session: Session) -> None:
        self.size += session.size
        self.feed_bytes += session.feed.size
        if session.state is SessionState.FINISHING:
            self.states["finishing"] += 1
        elif session.in_flight:
            self.states["running"] += 1
            self.running_bytes += sum(reply.events.size for reply in session.replies.running())
        else:
            self.states["idle"] += 1


async def total(live: Sequence[Session]) -> SessionTotal:
    """Some sessions at a time, between which turns go on."""
    made = SessionTotal()
    for number, session in enumerate(live):
        made.add(session)
        if number % SESSIONS_AT_ONCE == SESSIONS_AT_ONCE - 1:
            await asyncio.sleep(0)
    return made


@dataclass(frozen=True, slots=True)
class ServerGauges:
    """A collector, as ``prometheus_client`` calls what gives metrics when it is asked."""

    admission: Admission
    sessions: Sessions
    models: ServedModels
    total: SessionTotal
    generating: int
    """Turns that have asked an engine for a generation and have not got all of it."""

    def collect(self) -> Iterator[Metric]:
        yield gauges("build_info", "The server's version; always 1.", "version", {version("rollserve"): 1})
        yield gauge("turns_running", "Turns that have a place to run.", self.admission.running)
        yield gauge("turns_queued", "Requests that wait for a place to run.", self.admission.queued)
        yield from _of_sessions(self.sessions, self.total)
        yield from _of_journal(self.sessions.recorder)
        yield from _of_engines(self.models, self.generating)


def _of_sessions(sessions: Sessions, live: SessionTotal) -> Iterator[Metric]:
    tally = sessions.tally
    states = live.states | {"stored": sessions.stored_count, "finished": sessions.finished}
    yield gauges("sessions", "Sessions by what they are at. Those stored are in the journal only.", "state", states)
    events: dict[str, float] = {event: tally.events[event] for event in SessionEvent}
    yield counters("session_events", "What has happened to sessions.", "event", events)
    yield gauge("session_memory_bytes", "What the sessions in memory take, about.", live.size)
    buffers = {"running": live.running_bytes, "ended": sessions.replays.size, "feed": live.feed_bytes}
    yield gauges("event_buffer_bytes", "Events that are kept to be read, or read again.", "kind", buffers)
    yield counter("trained_tokens", "Sampled tokens in samples of finished sessions.", tally.trained)
    yield counters("dropped_tokens", "Sampled tokens that finishing left out.", "reason", tally.dropped)


def _of_journal(recorder: Recorder) -> Iterator[Metric]:
    """Zeros where there is no journal."""
    journal = recorder.journal if isinstance(recorder, JournalRecorder) else None
    frames = {kind.name.lower(): journal.frames[kind] if journal else 0 for kind in FrameKind}
    yield counters("journal_frames", "Frames appended to the journal.", "kind", frames)
    yield counter("journal_written_bytes", "Bytes appended to the journal.", journal.written if journal else 0)
    yield counter("journal_errors", "Frames that could not be recorded.", journal.errors if journal else 0)
    yield gauge("journal_segments", "Files of the journal.", len(journal.closed) + 1 if journal else 0)
    yield gauge("journal_bytes", "Bytes of the journal's files.", journal.bytes_on_disk if journal else 0)
    live = recorder.catalog.live_bytes if isinstance(recorder, JournalRecorder) else 0
    yield gauge("journal_live_bytes", "Bytes of the journal that are still needed.", live)
    yield gauge(
        "journal_unsynced_bytes",
        "Bytes of the journal that are not known to be on the disk.",
        journal.unsynced_bytes if journal else 0,
    )
    yield gauge(
        "journal_unsynced_seconds",
        "For how long something has been waiting for the disk.",
        journal.unsynced_s if journal else 0,
    )


def _of_engines(models: Iterable[ServedModel], generating: int) -> Iterator[Metric]:
    """Engines have the name of the first model that they serve: adapters share their model's."""
    engines: dict[int, ServedModel] = {}
    for served in models:
        engines.setdefault(id(served.engine), served)
    pools = {served.name: served.engine for served in engines.values() if isinstance(served.engine, Pooled)}
    held = {name: float(pool.held) for name, pool in pools.items()}
    yield gauges("engine_held", "1 while generations wait for a release.", "model", held)
    states = [(name, state) for name, pool in pools.items() for state in pool.endpoints()]
    waiting = generating - sum(state.live for _, state in states) if pools else 0
    yield gauge("turns_held", "Turns whose generation runs nowhere for now: on hold, or no endpoint takes it.", waiting)
    failures = CounterMetricFamily(
        "rollserve_engine_failures", "Generations and checks that failed at the endpoint.", labels=["model", "endpoint"]
    )
    for name, state in states:
        failures.add_metric([name, state.address], state.failures)
    yield failures
    for name, help_text, value in _ENDPOINT_GAUGES:
        family = GaugeMetricFamily(f"rollserve_engine_{name}", help_text, labels=["model", "endpoint"])
        for model, state in states:
            found = value(state)
            if found is not None:
                family.add_metric([model, state.address], found)
        yield family


_ENDPOINT_GAUGES: tuple[tuple[str, str, Callable[[EndpointState], float | None]], ...] = (
    ("up", "1 for an endpoint that is given generations.", lambda state: float(state.healthy)),
    (
        "draining",
        "1 for an endpoint that goes when its last generation has ended.",
        lambda state: float(state.draining),
    ),
    ("live", "Generations of this worker that run at the endpoint.", lambda state: state.live),
    (
        "breaker_open",
        "1 for an endpoint that is left alone after failures.",
        lambda state: float(state.breaker is not BreakerState.CLOSED),
    ),
    ("weight_version", "Version of the endpoint's weights, as far as is known.", lambda state: state.weight_version),
)
