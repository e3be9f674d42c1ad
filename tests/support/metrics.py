"""Metrics as a Prometheus would read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class Scraped:
    """``values`` by the name of a series and its labels; ``families`` are the names that have help and type."""

    families: frozenset[str]
    values: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    def __getitem__(self, name: str) -> float:
        """The sum of all series of one name."""
        return sum(value for (each, _), value in self.values.items() if each == name)

    def of(self, name: str, **labels: str) -> float:
        """The sum of those that have these labels."""
        wanted = set(labels.items())
        return sum(value for (each, given), value in self.values.items() if each == name and wanted <= given)

    def by(self, name: str, label: str) -> dict[str, float]:
        """Those that are not 0, by one label."""
        found: dict[str, float] = {}
        for (each, labels), value in self.values.items():
            if each == name and value:
                key = dict(labels).get(label, "")
                found[key] = found.get(key, 0) + value
        return found


def read(text: str) -> Scraped:
    values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    families = set()
    for family in text_string_to_metric_families(text):
        assert family.name not in families, f"{family.name} is there twice"
        assert family.documentation, family.name
        families.add(family.name)
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in values, f"{key} is there twice"
            values[key] = sample.value
    return Scraped(frozenset(families), values)


async def scrape(http: aiohttp.ClientSession, **headers: str) -> Scraped:
    async with http.get("/metrics", headers=headers) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return read(await response.text())
