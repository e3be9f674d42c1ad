"""Locust's view of the load: agents that hold sessions over four protocols, and how many of them there are.

    locust -f loadtest/locustfile.py --headless --host http://127.0.0.1:8400 --record FOLDER [--agents N] [--load steady]
           [--minutes M] [--scale X] [--seed N]

``python -m loadtest`` starts it with all that it needs. Events: request type TTFT (time to the first output), GAP (longest silence
between two pieces of output), TURN (the whole turn), SESSION (opening and finishing), each named by its protocol, in milliseconds;
every turn that ends is also a line of FOLDER/turns.jsonl, and every export a file in FOLDER/exports.
"""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path

import gevent
from locust import LoadTestShape, User, events
from locust.env import Environment
from locust.user.task import task

from loadtest.caller import Caller, Failed
from loadtest.recording import Recording
from loadtest.session import AgentSession
from loadtest.shapes import Draws, Load, users_at
from loadtest.speech import CONVERSATIONS

TICK_S = 0.05
"""How often the generator looks whether it is late."""


@events.init_command_line_parser.add_listener
def _options(parser) -> None:
    parser.add_argument("--record", type=Path, required=True, help="Folder for what is seen.")
    parser.add_argument("--agents", type=int, default=10, help="Agents at most (default: %(default)s).")
    parser.add_argument("--load", type=Load, choices=list(Load), default=Load.STEADY)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--scale", type=float, default=1.0, help="Of tokens, 0 to 1 (default: %(default)s).")
    parser.add_argument("--gap-scale", type=float, default=1.0, help="Of gaps, 0 to 1 (default: %(default)s).")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--no-sessions", action="store_true", help="The server has no /v1/sessions: open and finish none."
    )


@events.init.add_listener
def _begin(environment: Environment, **_: object) -> None:
    options = environment.parsed_options
    environment.recording = Recording(options.record, environment.events.request.fire)
    environment.numbers = itertools.count()
    gevent.spawn(_watch_lag, environment.recording)


def _watch_lag(recording: Recording) -> None:
    """How late this process comes to what is due: its own share in every time that it measures."""
    due = time.monotonic() + TICK_S
    while True:
        gevent.sleep(max(0.0, due - time.monotonic()))
        recording.lag(time.monotonic() - due)
        due = max(due + TICK_S, time.monotonic())


class OverTime(LoadTestShape):
    """The number of agents, as ``loadtest.shapes`` says."""

    def tick(self) -> tuple[int, float] | None:
        options = self.runner.environment.parsed_options
        share = self.get_run_time() / (options.minutes * 60)
        if share >= 1:
            return None
        wanted = users_at(options.load, share, options.agents)
        return wanted, max(1.0, options.agents / 5)


class Agent(User):
    """One session after the other; a task is one turn. Protocols take turns."""

    def on_start(self) -> None:
        options, self._number = self.environment.parsed_options, next(self.environment.numbers)
        self._rng = random.Random(options.seed * 1_000_003 + self._number)
        self._sessions = itertools.count()
        self._next()

    def wait_time(self) -> float:
        return self._session.gap_s

    @task
    def turn(self) -> None:
        try:
            self._session.turn()
        except Failed:
            self._session.give_up()
        if self._session.over:
            self._finish()
            self._next()

    def on_stop(self) -> None:
        self._finish()

    def _next(self) -> None:
        options = self.environment.parsed_options
        sid = f"load-{options.seed}-{self._number}-{next(self._sessions)}"
        speaks = CONVERSATIONS[self._number % len(CONVERSATIONS)]
        caller = Caller(self.environment.host, sid, self.environment.recording)
        draws = Draws(self._rng, options.scale, options.gap_scale)
        self._session = AgentSession(sid, speaks, caller, draws, opens=not options.no_sessions)

    def _finish(self) -> None:
        self._session.finish()
