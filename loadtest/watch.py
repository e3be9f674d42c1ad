"""Once a second: CPU and memory of each process of the system and of the load generator, the server's event-loop lag, and what it
says that its sessions take."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import Counter
from dataclasses import dataclass, field

import aiohttp
import psutil

EVERY_S = 1.0
CONTENT = re.compile(r"^rollserve_(?:session_memory|event_buffer)_bytes(?:\{.*\})? (\S+)$", re.MULTILINE)
SERVER = "server"
"""The name of the server's processes among the roots."""
LAG = re.compile(r'^rollserve_event_loop_lag_seconds_bucket\{(?:.*,)?le="([^"]+)".*\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one time. ``cpu`` in cores since the last sample, ``memory`` resident, in MB."""

    at: float
    name: str
    cpu: float
    memory: float


@dataclass(slots=True)
class Watch:
    """``stalls``: (Unix s, p99 of the server's event-loop lag since the last one in ms, as the upper end of its bucket)."""

    samples: list[Sample] = field(default_factory=list)
    stalls: list[tuple[float, float]] = field(default_factory=list)
    lags: Counter[float] = field(default_factory=Counter)
    """Counts of the event loop's lags over the run, by the upper end of their bucket in seconds."""
    content: list[tuple[float, float]] = field(default_factory=list)
    """(Unix s, MB that the server's sessions and their kept events take by its own account)."""
    _last: dict[int, tuple[float, float]] = field(default_factory=dict)
    _buckets: Counter[float] = field(default_factory=Counter)

    async def run(self, url: str, roots: dict[str, int]) -> None:
        """Until it is cancelled. ``roots``: process ids by name; their descendants are looked at, too."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
            while True:
                self._look(roots)
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with http.get(f"{url}/metrics") as answer:
                        if answer.status == 200:
                            self._take(await answer.text())
                await asyncio.sleep(EVERY_S)

    def _look(self, roots: dict[str, int]) -> None:
        for name, pid in roots.items():
            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(pid)
                for process in (root, *root.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                        self._sample(process, name)

    def _sample(self, process: psutil.Process, root: str) -> None:
        with process.oneshot():
            own, times = process.name(), process.cpu_times()
            name = root if own in ("rollserve", "python", "python3", "locust", root) else own
            memory = process.memory_info().rss / 1e6
        now, spent = time.time(), times.user + times.system
        before = self._last.get(process.pid)
        self._last[process.pid] = now, spent
        if before is not None and now > before[0]:
            cpu = (spent - before[1]) / (now - before[0])
            self.samples.append(Sample(now, f"{name} {process.pid}", round(cpu, 3), round(memory, 1)))

    def _take(self, text: str) -> None:
        self.content.append((time.time(), sum(float(found) for found in CONTENT.findall(text)) / 1e6))
        counts = lag_counts(text)
        new = counts - self._buckets
        first, self._buckets = not self._buckets, counts
        if new and not first:
            self.lags.update(new)
            self.stalls.append((time.time(), highest(new, 0.99) * 1000))


def lag_counts(text: str) -> Counter[float]:
    """From ``/metrics``: how often an event loop was so late since the start, by the upper end of the bucket in seconds."""
    total: Counter[float] = Counter()
    for end, count in LAG.findall(text):
        total[float(end)] += float(count)
    counts, below = Counter[float](), 0.0
    for end in sorted(total):
        counts[end] = total[end] - below
        below = total[end]
    return counts


def beyond_content(watch: Watch) -> list[tuple[float, float]]:
    """(Unix s, resident MB of all the server's processes, less what its sessions take), once a second."""
    resident: dict[int, dict[str, float]] = {}
    for sample in watch.samples:
        if sample.name.startswith(f"{SERVER} "):
            resident.setdefault(int(sample.at), {})[sample.name] = sample.memory
    content = {int(at): value for at, value in watch.content}
    return [(at, sum(found.values()) - content[at]) for at, found in sorted(resident.items()) if at in content]


def highest(counts: Counter[float], share: float) -> float:
    """The upper end of the bucket that holds this quantile; 0 of nothing."""
    below, total = 0.0, sum(counts.values())
    for end in sorted(counts):
        below += counts[end]
        if below >= share * total:
            return end
    return 0.0
