"""How soon a client that goes away in the middle of a reply frees its engine slot, by the engine's own clock.

    python -m loadtest.bench_disconnect [--trials N]

A real tritonserver with the scripted model, the server as a process; every protocol, streamed (left after the first text) and whole
(left while nothing has come), by FIN and by RST in turn, all kinds at once. Measured is from just before the socket is closed to
``slot_freed_at`` in the engine's log. Then all of it again with two workers, where about half of the requests are passed on.
A trial whose client left before the engine had its request is not counted (``counted`` in the result); a turn that still runs is an
error.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Any

import aiohttp

from engine.assets import demo_model_dir
from loadtest.figures import Figure, Measured, median, percentile
from loadtest.program import Options, run_benchmark, say
from loadtest.system import System, changed_over, scripted_system
from loadtest.wire import PROTOCOLS, Ask, ask, sent

GOAL_MS = 200.0
TRIALS, QUICK_TRIALS = 50, 2
"""Of each kind."""
TOKEN_MS = 20
SCRIPT = {
    "default": {"ids": [354, 1018, 3247] * 2000},  # far longer than anybody waits
    "timing": {"time_per_output_token_ms": TOKEN_MS},
}
WHOLE_S = (0.4, 0.8)
"""How long a client waits for a whole reply before it leaves; on a busy machine some leave before the engine has the request."""
FREED_S = 5.0
"""Longest that an entry of the engine's log is waited for."""


class NotFreed(Exception):
    """A slot was not freed, or not by a cancellation."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One client of session ``sid``. It goes away with a RST or with a FIN."""

    sid: str
    what: Ask
    reset: bool


async def leave(url: str, trial: Trial) -> float:
    """Ask, wait until the reply is under way, go away; gives the Unix time of that."""
    async with sent(url, trial.sid, trial.what) as wire:
        if trial.what.streams:
            await wire.until(trial.what.mark)
        else:
            await asyncio.sleep(random.uniform(*WHOLE_S))
        left_at = time.time()
        wire.close(reset=trial.reset)
        return left_at


async def freed(system: System, trials: list[Trial]) -> dict[str, float]:
    """When the engine had freed each trial's slot; without those that left before it had the request. Raises: NotFreed."""
    sids = {trial.sid for trial in trials}
    deadline = time.monotonic() + FREED_S
    found: dict[str, float] = {}
    while found.keys() != sids and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
        found = {entry["session"]: _freed_at(entry) for entry in system.logged() if entry["session"] in sids}
    for sid in sids - found.keys():
        await _require_idle(system.server.url, sid)
    return found


async def _require_idle(url: str, sid: str) -> None:
    """Raises: NotFreed, if a turn still runs in the session."""
    async with aiohttp.ClientSession(url) as http, http.get(f"/v1/sessions/{sid}") as response:
        if response.status == 200 and (await response.json())["in_flight"]:
            raise NotFreed(f"session {sid} still has a turn in flight after {FREED_S} s")


def _freed_at(entry: dict[str, Any]) -> float:
    if entry["finish_reason"] != "cancelled":
        raise NotFreed(f"session {entry['session']} ended by {entry['finish_reason']}: {entry['error']}")
    return float(entry["slot_freed_at"])


async def rounds(system: System, count: int, label: str) -> dict[str, list[float]]:
    """Milliseconds from leaving to the freed slot, by kind."""
    kinds = [ask(protocol, "Go on.", streams=streams) for protocol in PROTOCOLS for streams in (True, False)]
    taken: dict[str, list[float]] = {kind.name: [] for kind in kinds}
    for number in range(count + 1):
        trials = [Trial(f"{label}-{number}-{kind.name.replace(' ', '-')}", kind, number % 2 == 1) for kind in kinds]
        left = await asyncio.gather(*(leave(system.server.url, trial) for trial in trials))
        freed_at = await freed(system, trials)
        for trial, left_at in zip(trials, left, strict=True):
            if trial.sid in freed_at and number:  # the first round makes the connections to the engine
                taken[trial.what.name].append((freed_at[trial.sid] - left_at) * 1000)
        if number and number % 10 == 0:
            say(f"{label}: {number} of {count} rounds")
    return taken


async def run(trials: int, *, quick: bool) -> Measured:
    async with scripted_system(SCRIPT, demo_model_dir()) as system:
        if not quick:
            await changed_over(system.server)
        kinds = await rounds(system, trials, "one-worker")
    async with scripted_system(SCRIPT, demo_model_dir(), "--workers", "2") as system:
        if not quick:
            await changed_over(system.server, workers=2)
        forwarded = await rounds(system, trials, "two-workers")
    figures = [figure for name, taken in kinds.items() for figure in _figures(name, taken)]
    for name, by_kind in (("all", kinds), ("all, two workers", forwarded)):
        together = [each for taken in by_kind.values() for each in taken]
        figures += [*_figures(name, together), Figure(f"{name}: max", max(together), "ms", GOAL_MS)]
    counted = sum(len(taken) for by_kind in (kinds, forwarded) for taken in by_kind.values())
    return Measured(figures, {"trials": trials, "counted": counted, "token_ms": TOKEN_MS})


def _figures(name: str, taken: list[float]) -> list[Figure]:
    return [
        Figure(f"{name}: p50", median(taken), "ms"),
        Figure(f"{name}: p99", percentile(taken, 99), "ms", GOAL_MS),
    ]


def measure(options: Options) -> Measured:
    return asyncio.run(run(options.trials or (QUICK_TRIALS if options.quick else TRIALS), quick=options.quick))


def main(argv: list[str] | None = None) -> None:
    run_benchmark(
        "disconnect",
        __doc__,
        measure,
        argv,
        lambda parser: parser.add_argument("--trials", type=int, help="of each kind"),
    )


if __name__ == "__main__":
    main()
