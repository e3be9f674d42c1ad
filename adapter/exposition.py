"""Metrics as text, in Prometheus' exposition format: one worker's, and those of all workers as one.

Every series has the label ``worker``. Families are told apart by their ``# HELP`` line, which ``prometheus_client`` writes
before each, and the ``# TYPE`` line behind it (prometheus/docs, exposition_formats.md: all lines of a family stand together).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

SERIES_AT_ONCE = 40
"""Some ten microseconds each."""

_HELP = b"# HELP "
_FAMILY = re.compile(rb"^# HELP ", re.MULTILINE)
"""At the start of a line: a label may say the same, but breaks no line."""


@dataclass(frozen=True, slots=True)
class _One(Collector):
    family: Metric

    def collect(self) -> Iterator[Metric]:
        yield self.family


def pieces(sources: Iterable[Collector], slot: int) -> Iterator[bytes]:
    """The metrics of the worker of ``slot``, some series at a time: a piece takes half a millisecond, all of them ten."""
    worker = str(slot)
    yield _up(worker, 1)
    for source in sources:
        for family in source.collect():
            yield from _parts(family, worker)


def render(sources: Iterable[Collector], slot: int) -> bytes:
    """All of ``pieces``."""
    return b"".join(pieces(sources, slot))


def missing(slot: int) -> bytes:
    """What stands for a worker that does not answer."""
    return _up(str(slot), 0)


def merge(texts: Sequence[bytes]) -> bytes:
    """The metrics of several workers as one text, families together."""
    families: dict[bytes, list[bytes]] = {}
    for text in texts:
        for family in _FAMILY.split(text)[1:]:
            end = _header_end(family)
            families.setdefault(family[:end], []).append(family[end:])
    return b"".join(_HELP + header + b"".join(series) for header, series in families.items())


def _parts(family: Metric, worker: str) -> Iterator[bytes]:
    """With the worker's label, and without the time at which each series was made: nobody asks for that."""
    samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    for start in range(0, max(len(samples), 1), SERIES_AT_ONCE):
        part = Metric(family.name, family.documentation, family.type, family.unit)
        some = samples[start : start + SERIES_AT_ONCE]
        part.samples = [sample._replace(labels={**sample.labels, "worker": worker}) for sample in some]
        text = generate_latest(_One(part))
        yield text[_header_end(text) :] if start else text


def _header_end(family: bytes) -> int:
    """Where the lines of its help and type end."""
    return family.index(b"\n", family.index(b"\n") + 1) + 1


def _up(worker: str, value: float) -> bytes:
    family = GaugeMetricFamily("rollserve_worker_up", "1 where a worker answers.", labels=["worker"])
    family.add_metric([worker], value)
    return generate_latest(_One(family))
