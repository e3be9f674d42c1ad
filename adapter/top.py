"""What ``rollserve top`` shows, worked out from two scrapes of ``/metrics``: rates and quantiles of what happened between them.

A counter that is lower than before belongs to a process that was started anew: what it has is what happened, as Prometheus takes
it. A quantile is interpolated within its bucket, as ``histogram_quantile`` does (prometheus/docs, querying/functions.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Scrape:
    """``/metrics`` and ``/readyz`` at one moment; ``at`` in seconds of any clock that goes on."""

    at: float
    series: Mapping[str, Mapping[Labels, float]]
    ready: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, at: float, text: str, ready: Mapping[str, Any] | None = None) -> Scrape:
        """Raises: ValueError, if ``text`` is in no exposition format."""
        series: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                series.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
        return cls(at, series, ready or {})

    def of(self, name: str, **labels: str) -> dict[Labels, float]:
        """The series of ``rollserve_<name>`` that have these labels."""
        wanted = set(labels.items())
        found = self.series.get(f"rollserve_{name}", {})
        return {each: value for each, value in found.items() if wanted <= each}

    def sum(self, name: str, **labels: str) -> float:
        return sum(self.of(name, **labels).values())

    def values(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Sums by one label."""
        return _by(self.of(name, **labels), label)


@dataclass(frozen=True, slots=True)
class Between:
    """What happened from ``before`` to ``now``."""

    before: Scrape
    now: Scrape

    @property
    def seconds(self) -> float:
        return max(self.now.at - self.before.at, 1e-9)

    def growth(self, name: str, **labels: str) -> dict[Labels, float]:
        earlier = self.before.of(name, **labels)
        return {each: _grown(earlier.get(each, 0.0), value) for each, value in self.now.of(name, **labels).items()}

    def rate(self, name: str, **labels: str) -> float:
        """Per second."""
        return sum(self.growth(name, **labels).values()) / self.seconds

    def rates(self, name: str, label: str) -> dict[str, float]:
        """Per second, by one label."""
        return {each: count / self.seconds for each, count in _by(self.growth(name), label).items()}

    def quantile(self, q: float, name: str, **labels: str) -> float | None:
        """Of a histogram; None if nothing was observed."""
        return quantile(q, _by(self.growth(f"{name}_bucket", **labels), "le"))


def quantile(q: float, buckets: Mapping[str, float]) -> float | None:
    """``buckets``: how many observations were at most each bound. What lies beyond the last bound counts as there."""
    bounds = sorted((float(bound), count) for bound, count in buckets.items())
    total = bounds[-1][1] if bounds else 0.0
    if not total:
        return None
    below, start = 0.0, 0.0
    for bound, count in bounds:
        if count >= q * total and count > below:
            if math.isinf(bound):
                return start
            return start + (bound - start) * (q * total - below) / (count - below)
        below, start = count, bound
    return start


@dataclass(frozen=True, slots=True)
class WorkerRow:
    name: str
    up: bool
    turns: float
    """Per second, as ``tokens``."""
    tokens: float
    running: int
    queued: int
    sessions: int
    memory_bytes: int
    """Resident."""
    cpu: float
    """Of one core."""
    lag_s: float | None
    """The event loop's, p99."""


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """``live`` counts the generations of all workers; an endpoint is ``up`` if it is for one of them."""

    model: str
    address: str
    up: bool
    draining: bool
    broken: bool
    live: int
    weight_version: int | None


@dataclass(frozen=True, slots=True)
class Frame:
    """One picture. Rates are per second, times in seconds; a quantile is None where nothing was observed."""

    status: str
    """``ready``, or why not."""
    turns: float
    output_tokens: float
    prompt_tokens: float
    cached_part: float | None
    """Of the prompt tokens."""
    first_token: tuple[float | None, float | None]
    """p50 and p99, as ``inter_token`` and ``turn``."""
    inter_token: tuple[float | None, float | None]
    turn: tuple[float | None, float | None]
    running: int
    queued: int
    held: int
    on_hold: bool
    sessions: Mapping[str, int]
    journal_bytes: float
    """Written per second."""
    unsynced_bytes: int
    unsynced_s: float
    sync_s: float | None
    """p99."""
    journal_errors: int
    outcomes: Mapping[str, int]
    """Since the start, as ``reasons``."""
    reasons: Mapping[str, int]
    workers: tuple[WorkerRow, ...]
    endpoints: tuple[EndpointRow, ...]


def frame(before: Scrape, now: Scrape) -> Frame:
    """The picture at ``now``."""
    change = Between(before, now)
    prompt = change.rate("prompt_tokens_total")
    return Frame(
        status=_status(now.ready),
        turns=change.rate("turns_total"),
        output_tokens=change.rate("output_tokens_total"),
        prompt_tokens=prompt,
        cached_part=change.rate("cached_prompt_tokens_total") / prompt if prompt else None,
        first_token=_p50_p99(change, "time_to_first_token_seconds"),
        inter_token=_p50_p99(change, "inter_token_seconds"),
        turn=_p50_p99(change, "turn_seconds"),
        running=int(now.sum("turns_running")),
        queued=int(now.sum("turns_queued")),
        held=int(now.sum("turns_held")),
        on_hold=now.sum("engine_held") > 0,
        sessions=_counts(now.values("sessions", "state")),
        journal_bytes=change.rate("journal_written_bytes_total"),
        unsynced_bytes=int(now.sum("journal_unsynced_bytes")),
        unsynced_s=max(now.of("journal_unsynced_seconds").values(), default=0.0),
        sync_s=change.quantile(0.99, "journal_sync_seconds"),
        journal_errors=int(now.sum("journal_errors_total")),
        outcomes=_counts(now.values("turns_total", "outcome")),
        reasons=_counts(now.values("history_matches_total", "reason")),
        workers=tuple(_worker(change, name) for name in sorted(now.values("worker_up", "worker"), key=_number)),
        endpoints=_endpoints(now),
    )


def _status(ready: Mapping[str, Any]) -> str:
    return str(ready.get("reason") or ready.get("status") or "unknown")


def _p50_p99(change: Between, name: str) -> tuple[float | None, float | None]:
    return change.quantile(0.5, name), change.quantile(0.99, name)


def _worker(change: Between, name: str) -> WorkerRow:
    now, cpu = change.now, "process_cpu_seconds_total"
    own = frozenset({("worker", name)})
    spent = _grown(change.before.series.get(cpu, {}).get(own, 0.0), now.series.get(cpu, {}).get(own, 0.0))
    return WorkerRow(
        name=name,
        up=now.sum("worker_up", worker=name) > 0,
        turns=change.rate("turns_total", worker=name),
        tokens=change.rate("output_tokens_total", worker=name),
        running=int(now.sum("turns_running", worker=name)),
        queued=int(now.sum("turns_queued", worker=name)),
        sessions=int(sum(now.sum("sessions", worker=name, state=state) for state in ("idle", "running", "finishing"))),
        memory_bytes=int(now.series.get("process_resident_memory_bytes", {}).get(own, 0.0)),
        cpu=spent / change.seconds,
        lag_s=change.quantile(0.99, "event_loop_lag_seconds", worker=name),
    )


def _endpoints(now: Scrape) -> tuple[EndpointRow, ...]:
    known = sorted({(dict(labels)["model"], dict(labels)["endpoint"]) for labels in now.of("engine_up")})
    return tuple(_endpoint(now, model, address) for model, address in known)


def _endpoint(now: Scrape, model: str, address: str) -> EndpointRow:
    def any_of(name: str) -> bool:
        return now.sum(f"engine_{name}", model=model, endpoint=address) > 0

    versions = now.of("engine_weight_version", model=model, endpoint=address).values()
    return EndpointRow(
        model=model,
        address=address,
        up=any_of("up"),
        draining=any_of("draining"),
        broken=any_of("breaker_open"),
        live=int(now.sum("engine_live", model=model, endpoint=address)),
        weight_version=int(max(versions)) if versions else None,
    )


def _grown(before: float, now: float) -> float:
    return now - before if now >= before else now


def _by(series: Mapping[Labels, float], label: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for labels, value in series.items():
        key = dict(labels).get(label, "")
        found[key] = found.get(key, 0.0) + value
    return found


def _counts(values: Mapping[str, float]) -> dict[str, int]:
    """The largest first, without zeros."""
    most: Iterable[tuple[str, float]] = sorted(values.items(), key=lambda item: -item[1])
    return {name: int(value) for name, value in most if value}


def _number(text: str) -> tuple[int, str]:
    return (int(text) if text.isdigit() else 0, text)
