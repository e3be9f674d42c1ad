"""Metrics as text, in Prometheus' exposition format: one worker's, and those of all workers as one.

Every series has the label ``worker``. Families are told apart by their ``# HELP`` line, which ``prometheus_client`` writes before
each (prometheus/docs, exposition_formats.md: all lines of a family stand together).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_HELP = b"# HELP "
_FAMILY = re.compile(rb"^# HELP ", re.MULTILINE)
"""At the start of a line: a label may say the same, but breaks no line."""
_HEADERS = 2
"""Lines before a family's series: its help, its type."""


@dataclass(frozen=True, slots=True)
class _OfWorker(Collector):
    """What ``source`` collects, with the worker's label. When a series was made is left out: nobody asks."""

    source: Collector
    worker: str

    def collect(self) -> Iterator[Metric]:
        yield _up(self.worker, 1)
        for family in self.source.collect():
            labelled = Metric(family.name, family.documentation, family.type, family.unit)
            labelled.samples = [
                sample._replace(labels={**sample.labels, "worker": self.worker})
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            yield labelled


@dataclass(frozen=True, slots=True)
class _Missing(Collector):
    worker: str

    def collect(self) -> Iterator[Metric]:
        yield _up(self.worker, 0)


def _up(worker: str, value: float) -> Metric:
    family = GaugeMetricFamily("rollserve_worker_up", "1 where a worker answers.", labels=["worker"])
    family.add_metric([worker], value)
    return family


def render(registry: CollectorRegistry, slot: int) -> bytes:
    """The metrics of the worker of ``slot``."""
    return generate_latest(_OfWorker(registry, str(slot)))


def missing(slot: int) -> bytes:
    """What stands for a worker that does not answer."""
    return generate_latest(_Missing(str(slot)))


def merge(texts: Sequence[bytes]) -> bytes:
    """The metrics of several workers as one text, families together."""
    families: dict[bytes, list[bytes]] = {}
    for text in texts:
        for family in _FAMILY.split(text)[1:]:
            lines = family.splitlines(keepends=True)
            header, series = lines[:_HEADERS], lines[_HEADERS:]
            families.setdefault(b"".join(header), []).extend(series)
    return b"".join(_HELP + header + b"".join(series) for header, series in families.items())
