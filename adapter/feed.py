"""The live feed of a session: everything that its turns say, as it is said, for whoever follows.

A feed is a buffer of numbered events (``protocols.seed_events``), each with ``turn``, the number of the turn that it belongs to:
several turns may run at once. Nothing is rendered while nobody follows: then a turn only leaves its events with the feed for as
long as it runs, so that a follower who joins in the middle is given that reply from its start. When the last follower has left,
the feed goes on for ``linger_s``, so that one that comes back finds no gap; then it keeps nothing, but its numbers go on.

    IDLE ──first follower──► LIVE ──last follower left, linger_s passed──► IDLE
      └──────────────────────┴──► closed, with its session
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from adapter.buffer import EventBuffer, Reader
from adapter.errors import AdapterError, Gone
from adapter.protocols.seed_events import SeedEvents, ToolResult
from adapter.trajectory import Plan
from adapter.types import ReplyEvent


@dataclass(slots=True)
class _Turn:
    """A turn that runs. ``first`` is the number of its first event, once it is rendered."""

    number: int
    plan: Plan
    events: SeedEvents
    said: list[Sequence[ReplyEvent]] = field(default_factory=list)
    first: int | None = None


class SessionFeed:
    """The feed of one session. Turns tell it ``began``, ``said`` and ``ended``."""

    def __init__(self, keep_bytes: int, linger_s: float) -> None:
        self._buffer = EventBuffer(keep_bytes)
        self._linger_s = linger_s
        self._turns: dict[int, _Turn] = {}
        self._live = False
        self._followers = 0
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def live(self) -> bool:
        """Whether somebody follows, or may come back and find no gap."""
        return self._live

    @property
    def size(self) -> int:
        """Bytes of the events that are kept."""
        return self._buffer.size

    def began(self, number: int, plan: Plan) -> None:
        """Turn ``number`` runs; its request may have brought results of tools."""
        ids = count(1)
        turn = _Turn(number, plan, SeedEvents(lambda: call_id(number, next(ids)), {"turn": number}))
        self._turns[number] = turn
        if self._live:
            self._render(turn)

    def said(self, number: int, events: Sequence[ReplyEvent]) -> None:
        turn = self._turns[number]
        turn.said.append(events)
        if self._live:
            self._buffer.append(turn.events.events(events))

    def ended(self, number: int, error: AdapterError | None = None) -> None:
        turn = self._turns.pop(number)
        if self._live:
            self._buffer.append(turn.events.finish() if error is None else turn.events.error(error))

    @contextmanager
    def follow(self, after: int | None = None) -> Iterator[Reader]:
        """Read on behind event ``after``; without it, from the start of the oldest turn that runs. Raises: Gone."""
        start = self._start(after)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self._followers += 1
        try:
            with self._buffer.reader(start) as reader:
                yield reader
        finally:
            self._followers -= 1
            if not self._followers and self._live:
                self._idle_timer = asyncio.get_running_loop().call_later(self._linger_s, self._rest)

    def close(self) -> None:
        """The session is over: followers are given what there is, then the end."""
        self._buffer.close()
        self._live = False
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def _start(self, after: int | None) -> int:
        if after is not None:
            if not self._live or not self._buffer.first <= after + 1 <= self._buffer.end:
                raise Gone(f"the events behind {after} are no longer kept; follow without Last-Event-ID")
            return after + 1
        if not self._live and not self._buffer.closed:
            self._live = True
            for turn in self._turns.values():
                self._render(turn)
        return min((turn.first for turn in self._turns.values() if turn.first is not None), default=self._buffer.end)

    def _render(self, turn: _Turn) -> None:
        """What a turn has said so far."""
        turn.first = self._buffer.end
        self._buffer.append(turn.events.start())
        self._buffer.append(turn.events.results(new_results(turn.plan)))
        for events in turn.said:
            self._buffer.append(turn.events.events(events))

    def _rest(self) -> None:
        self._live = False
        self._idle_timer = None
        self._buffer.clear()


def new_results(plan: Plan) -> list[ToolResult]:
    """The results of tools that a request brought: those behind the last reply in it."""
    replied = max((i for i, message in enumerate(plan.history) if message["role"] == "assistant"), default=-1)
    calls = plan.history[replied].get("tool_calls", ()) if replied >= 0 else ()
    caller = _caller(plan)
    results = [message["content"] for message in plan.history[replied + 1 :] if message["role"] == "tool"]
    return [
        ToolResult(
            output,
            name=calls[index]["function"]["name"] if index < len(calls) else None,
            call_id=call_id(caller, index + 1) if caller is not None and index < len(calls) else None,
        )
        for index, output in enumerate(results)
    ]


def call_id(turn: int, call: int) -> str:
    """A call's name in the feed: the calls of a turn are counted from 1."""
    return f"call_{turn}_{call}"


def _caller(plan: Plan) -> int | None:
    """The number of the turn that is the last reply in the request, if that was sampled here."""
    if plan.adoption is not None:
        return plan.adoption.entry.turn.number
    for message in plan.unmatched:
        if message["role"] == "assistant":
            return None
    last = next((node for node in reversed(plan.path) if node.role == "assistant"), None)
    return None if last is None or last.turn is None else last.turn.number
