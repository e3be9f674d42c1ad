"""One live session: what it holds, which turns run in it, and what it may still have of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from adapter.config import Config
from adapter.errors import BadRequest, Gone, TooManyRequests, Unavailable
from adapter.feed import SessionFeed
from adapter.footprint import turn_bytes
from adapter.logs import event
from adapter.protocols.known import KnownBeginnings
from adapter.recorder import Recorder
from adapter.records import Answered, ResponseRecord
from adapter.replies import ReplyBook
from adapter.responses import ResponseStore
from adapter.session_bodies import FinishRequest, OnWeightLag, SessionSettings
from adapter.trajectory import SavedTurn, Trajectory

logger = logging.getLogger("rollserve.sessions")

MAX_NAME_LENGTH = 256
"""Characters. Names come from headers and bodies; API keys, which may serve as names, are shorter."""

EMPTY_BYTES = 8_000
"""What a session without turns takes in memory, about."""


class SessionState(StrEnum):
    """Where a live session stands."""

    OPEN = "open"
    FINISHING = "finishing"
    """Waiting for turns in flight, or exporting; no new turn is admitted."""


@dataclass(slots=True)
class Session:
    """One live session."""

    sid: str
    settings: SessionSettings
    trajectory: Trajectory
    created_at: float
    """Unix time, seconds."""
    replies: ReplyBook
    feed: SessionFeed
    recorder: Recorder
    state: SessionState = SessionState.OPEN
    in_flight: set[asyncio.Task[Any]] = field(default_factory=set)
    turns_in_flight: int = 0
    """A task may run several turns: the choices of one reply."""
    turns_started: int = 0
    responses: ResponseStore = field(default_factory=ResponseStore)
    known: dict[str, KnownBeginnings] = field(default_factory=dict)
    """What requests began with, by protocol."""
    finishing: tuple[FinishRequest, asyncio.Task[bytes]] | None = None
    """The finish that runs: the same request again joins it."""
    key_fingerprint: str | None = None
    """Of the session's own access key, if it has one."""
    used_at: float = field(default_factory=time.monotonic)
    """When it was opened, loaded, or a turn of it began or ended."""
    turns_size: int = EMPTY_BYTES
    """Bytes that it takes in memory, about, without stored responses."""

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about."""
        return self.turns_size + self.responses.size

    @contextmanager
    def turn_in_flight(self, config: Config, count: int = 1) -> Iterator[int]:
        """Hold a place in the in-flight set; gives the number of this turn, counted from 1 by start.

        With ``count`` it is the first of so many turns that the task runs. Raises: Gone, TooManyRequests.
        """
        task = asyncio.current_task()
        assert task is not None
        self._admit(config, count)
        first = self.turns_started + 1
        self.turns_started += count
        self.turns_in_flight += count
        self.in_flight.add(task)
        self.used_at = time.monotonic()
        try:
            yield first
        finally:
            self.turns_in_flight -= count
            self.in_flight.discard(task)
            self.used_at = time.monotonic()

    def _admit(self, config: Config, count: int) -> None:
        if self.state is not SessionState.OPEN:
            raise Gone(f"session {self.sid!r} is being finished")
        limit = self.settings.max_turns or config.max_turns
        if limit is not None and self.trajectory.turn_count + self.turns_in_flight + count > limit:
            raise TooManyRequests(f"session {self.sid!r} has had its {limit} turns")
        self.tokens_left(config)

    def tokens_left(self, config: Config) -> int | None:
        """Output tokens that the session may still have, if they are limited. Raises: TooManyRequests, if there are none."""
        limit = self.settings.max_session_tokens or config.max_session_tokens
        if limit is None:
            return None
        if self.trajectory.sampled_tokens >= limit:
            raise TooManyRequests(f"session {self.sid!r} has had its {limit} output tokens")
        return limit - self.trajectory.sampled_tokens

    def check_weight_lag(self, model: str, version: int) -> None:
        """``model`` has ``version`` in force. Raises: Gone, if the session ends when its tokens are too old, and they are."""
        limit = self.settings.max_weight_lag
        if limit is None or self.settings.on_weight_lag is not OnWeightLag.END:
            return
        oldest = self.trajectory.oldest_version(model)
        if oldest is not None and oldest < version - limit:
            raise Gone(
                f"session {self.sid!r} has tokens of weight version {oldest}, {version - oldest} behind version {version} that is "
                f"in force; it allows {limit} (max_weight_lag): finish it, and go on in another"
            )

    def record(self, saved: SavedTurn, answered: Answered) -> None:
        """A turn that is about to be committed. Raises: Unavailable."""
        self.recorder.turn(self.sid, saved, answered.reply, answered.response)
        self.turns_size += turn_bytes(saved)

    def record_interrupted(self, saved: SavedTurn) -> None:
        """A reply that was cut off. Raises: Unavailable."""
        self.recorder.interrupted(self.sid, saved)
        self.turns_size += turn_bytes(saved)

    def record_ended(self, response: ResponseRecord) -> None:
        """A stored response that ended without a turn."""
        try:
            self.recorder.response(self.sid, response)
        except Unavailable as error:
            # No turn is lost by this: as long as the session stays in memory the response is there.
            event(logger, logging.WARNING, "response_not_recorded", sid=self.sid, message=str(error))

    def delete_response(self, response_id: str) -> None:
        """For good. Raises: Unavailable; then it is still there."""
        self.recorder.response_deleted(self.sid, response_id)
        self.responses.delete(response_id)

    @property
    def in_use(self) -> bool:
        """Whether somebody would miss what of the session is in no journal: what runs, and readers."""
        idle = self.state is SessionState.OPEN and not self.in_flight
        return not idle or self.feed.live or self.replies.in_use


@dataclass(frozen=True, slots=True)
class StoredSession:
    """What is known of a live session that is in the journal only."""

    created_at: float
    """Unix time, seconds."""
    key_fingerprint: str | None
    turns_started: int = 0
    """By this process, those that failed included: their numbers are not given again."""


def check_name(sid: str) -> None:
    """Raises: BadRequest."""
    if len(sid) > MAX_NAME_LENGTH or not sid.isprintable():
        raise BadRequest(f"a session's name has at most {MAX_NAME_LENGTH} printable characters", field="sid")
