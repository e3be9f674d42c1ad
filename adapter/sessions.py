"""Sessions of this process: open, find, finish, drop.

A session lives from its first request, or from ``POST /v1/sessions``, until it is finished or dropped. Everything that touches one
runs on one event loop, so nothing here is locked. The in-flight set holds the tasks of turns that are being made; a turn joins the
trajectory when it is committed, and what was sampled of one that ends early is set aside there.

    OPEN ──finish──► FINISHING ──exported──► finished: the answer is kept for a repeated finish, turns are answered with 410
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from adapter.config import Config
from adapter.errors import BadRequest, Conflict, Gone, NotFound, SessionDamaged, TooManyRequests
from adapter.feed import SessionFeed
from adapter.finished import Finished, FinishedSessions
from adapter.ownership import Ownership
from adapter.recorder import Recorder, Unrecorded
from adapter.replies import ReplayBudget, ReplyBook
from adapter.responses import ResponseStore
from adapter.restoring import Terms, restore_trajectory
from adapter.session_bodies import FinishRequest, SessionSettings
from adapter.storage.errors import StorageError
from adapter.storage.recovery import Recovered
from adapter.trajectory import Export, Sample, Trajectory

MAX_NAME_LENGTH = 256
"""Characters. Names come from headers and bodies; API keys, which may serve as names, are shorter."""

_UNREADABLE = (StorageError, ValueError, LookupError, StopIteration)
"""What reading a session's frames may raise."""


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
    replies: ReplyBook
    feed: SessionFeed
    recorder: Recorder
    state: SessionState = SessionState.OPEN
    in_flight: set[asyncio.Task[Any]] = field(default_factory=set)
    turns_in_flight: int = 0
    """A task may run several turns: the choices of one reply."""
    turns_started: int = 0
    responses: ResponseStore = field(default_factory=ResponseStore)
    finishing: tuple[FinishRequest, asyncio.Task[bytes]] | None = None
    """The finish that runs: the same request again joins it."""
    key_fingerprint: str | None = None
    """Of the session's own access key, if it has one."""

    @contextmanager
    def turn_in_flight(self, max_turns: int | None, count: int = 1) -> Iterator[int]:
        """Hold a place in the in-flight set; gives the number of this turn, counted from 1 by start.

        With ``count`` it is the first of so many turns that the task runs. Raises: Gone, TooManyRequests.
        """
        task = asyncio.current_task()
        assert task is not None
        self._admit(max_turns, count)
        first = self.turns_started + 1
        self.turns_started += count
        self.turns_in_flight += count
        self.in_flight.add(task)
        try:
            yield first
        finally:
            self.turns_in_flight -= count
            self.in_flight.discard(task)

    def _admit(self, max_turns: int | None, count: int) -> None:
        if self.state is not SessionState.OPEN:
            raise Gone(f"session {self.sid!r} is being finished")
        limit = self.settings.max_turns or max_turns
        if limit is not None and self.trajectory.turn_count + self.turns_in_flight + count > limit:
            raise TooManyRequests(f"session {self.sid!r} has had its {limit} turns")


class Sessions:
    """All sessions that this process owns.

    ``decode`` turns the ids of a sample's response into text; ``weight_version`` gives the engine's, for filters by staleness.
    ``recovered`` is what the journal behind ``recorder`` held: its sessions come into memory when they are first asked for.
    Whatever is asked about a session of another worker (``ownership``) raises OwnedElsewhere.
    """

    def __init__(
        self,
        config: Config,
        decode: Callable[[list[int]], str],
        weight_version: Callable[[], int],
        recorder: Recorder | None = None,
        recovered: Recovered | None = None,
        ownership: Ownership | None = None,
    ) -> None:
        self._config = config
        self._ownership = ownership or Ownership()
        self._decode = decode
        self._weight_version = weight_version
        self.recorder = recorder or Unrecorded()
        self._live: dict[str, Session] = {}
        self._stored: set[str] = set() if recovered is None else set(recovered.catalog)
        """Live sessions that are in the journal only."""
        self._damaged: dict[str, str] = {} if recovered is None else recovered.damaged
        self._finished = FinishedSessions(config.keep_finished, self.recorder.forgotten)
        for each in () if recovered is None else recovered.finished.values():
            request = FinishRequest.parse(each.body)
            self._finished.add(each.sid, Finished(request, each.finished_at, None, each.key_fingerprint))
        self._replays = ReplayBudget(config.replay_total_bytes, config.replay_keep_s)

    def new_name(self) -> str:
        """A name that no session has, for one that this process is to own."""
        return self._ownership.new_name()

    def open(self, sid: str, settings: SessionSettings, key_fingerprint: str | None = None) -> Session:
        """A new session. Raises: Conflict, if the name was ever used; BadRequest, if it is no name."""
        _check_name(sid)
        if self.known(sid) is not None or sid in self._finished:
            raise Conflict(f"session {sid!r} exists already", field="sid")
        terms = Terms(
            settings=settings.source,
            policy=settings.policy or self._config.history_policy,
            fork_threshold_tokens=self._config.fork_threshold_tokens,
            created_at=time.time(),
            key_fingerprint=key_fingerprint,
        )
        self.recorder.opened(sid, terms.to_dict())
        self._live[sid] = self._session(sid, settings, terms)
        return self._live[sid]

    def find(self, sid: str) -> Session:
        """A live session. Raises: Gone, if it is finished; NotFound; SessionDamaged."""
        session = self.known(sid)
        if session is not None:
            return session
        if sid in self._finished:
            raise Gone(f"session {sid!r} is finished")
        raise NotFound(f"there is no session {sid!r}; open it with POST /v1/sessions", field="session")

    def known(self, sid: str) -> Session | None:
        """A live session, or None. Raises: SessionDamaged, OwnedElsewhere."""
        self._ownership.require(sid)
        return self._load(sid) if sid in self._stored else self._live.get(sid)

    def key_fingerprint(self, sid: str) -> str | None:
        """Of the key that a session was opened with, finished ones included. Raises: OwnedElsewhere."""
        self._ownership.require(sid)
        finished = self._finished.get(sid)
        if finished is not None:
            return finished.key_fingerprint
        if sid not in self._stored:
            session = self._live.get(sid)
            return None if session is None else session.key_fingerprint
        try:
            return Terms.read(next(self.recorder.frames(sid))).key_fingerprint
        except _UNREADABLE:
            return None

    def find_or_open(self, sid: str) -> Session:
        """The session of a name that a client brought itself. Raises: as ``find``, with ``--explicit-sessions``; else Gone."""
        session = self.known(sid)
        if session is not None:
            return session
        if self._config.explicit_sessions or sid in self._finished:
            return self.find(sid)
        return self.open(sid, SessionSettings())

    def live(self) -> list[Session]:
        """Those in memory."""
        return list(self._live.values())

    def stored(self) -> list[str]:
        """Names of live sessions that are in the journal only."""
        return sorted(self._stored)

    def _session(self, sid: str, settings: SessionSettings, terms: Terms) -> Session:
        trajectory = Trajectory(terms.fork_threshold_tokens, require_log_probs=True, policy=terms.policy)
        replies = ReplyBook(self._replays, self._config.replay_session_bytes)
        feed = SessionFeed(self._config.replay_reply_bytes, self._config.replay_keep_s)
        session = Session(sid, settings, trajectory, terms.created_at, replies, feed, self.recorder)
        session.key_fingerprint = terms.key_fingerprint
        return session

    def _load(self, sid: str) -> Session:
        """Out of the journal. Raises: SessionDamaged."""
        if sid in self._damaged:
            raise SessionDamaged(f"session {sid!r} cannot be rebuilt: {self._damaged[sid]}")
        frames = self.recorder.frames(sid)
        try:
            terms = Terms.read(next(frames))
            session = self._session(sid, SessionSettings.parse(terms.settings), terms)
            restored = restore_trajectory(session.trajectory, frames)
        except _UNREADABLE as error:
            self._damaged[sid] = str(error)
            raise SessionDamaged(f"session {sid!r} cannot be rebuilt: {error}") from error
        session.turns_started = restored.turns_started
        restored.give_back(session.replies)
        self._stored.discard(sid)
        self._live[sid] = session
        return session

    async def drop(self, sid: str) -> None:
        """Forget a session and all it recorded; its turns in flight are cancelled. Raises: NotFound."""
        if sid in self._finished:
            self.recorder.dropped(sid)
            self._finished.remove(sid)
        elif sid in self._damaged:
            self.recorder.dropped(sid)
            del self._damaged[sid]
            self._stored.discard(sid)
        else:
            session = self.find(sid)
            session.state = SessionState.FINISHING
            await _cancel(session.in_flight)
            self.recorder.dropped(sid)
            self._end(session)
        await self.recorder.settled()

    async def finish(self, sid: str, request: FinishRequest, render: Callable[[Session, Export], bytes]) -> bytes:
        """Export a session and end it; the answer is what ``render`` makes of the export.

        Idempotent: the same finish again gives the same answer. Turns in flight get ``finish_grace_s`` to end.
        Raises: NotFound; Conflict, if it is being finished or was finished in another way.
        """
        earlier = self._finished.get(sid)
        if earlier is not None:
            if earlier.request != request:
                raise Conflict(f"session {sid!r} was finished with another reward or metadata")
            return self._answer(sid, earlier)
        session = self.find(sid)
        if session.state is SessionState.OPEN:
            session.state = SessionState.FINISHING
            task = asyncio.create_task(self._finish(session, request, render))
            session.finishing = (request, task)
        elif session.finishing is None or session.finishing[0] != request:
            raise Conflict(f"session {sid!r} is being finished with other fields, or dropped")
        # A client that leaves does not undo the finish: when it asks again, the answer is there.
        return await asyncio.shield(session.finishing[1])

    async def _finish(
        self, session: Session, request: FinishRequest, render: Callable[[Session, Export], bytes]
    ) -> bytes:
        finished_at = time.time()
        try:
            answer = await self._export(session, request, render)
            self.recorder.finished(session.sid, request.source, finished_at, answer, session.key_fingerprint)
        except BaseException:
            session.state, session.finishing = SessionState.OPEN, None
            raise
        self._end(session)
        kept = None if self.recorder.keeps else answer
        self._finished.add(session.sid, Finished(request, finished_at, kept, session.key_fingerprint))
        await self.recorder.settled()
        return answer

    def preview(self, sid: str, render: Callable[[Session, Export], bytes]) -> bytes:
        """What ``finish`` without any fields would answer now, or what it did answer. Raises: NotFound."""
        earlier = self._finished.get(sid)
        if earlier is not None:
            return self._answer(sid, earlier)
        return self._render_export(self.find(sid), FinishRequest(), render)

    def _answer(self, sid: str, finished: Finished) -> bytes:
        """Raises: SessionDamaged."""
        try:
            answer = finished.answer if finished.answer is not None else self.recorder.answer(sid)
        except StorageError as error:
            raise SessionDamaged(f"the samples of session {sid!r} cannot be read: {error}") from error
        assert answer is not None
        return answer

    async def _export(
        self, session: Session, request: FinishRequest, render: Callable[[Session, Export], bytes]
    ) -> bytes:
        if session.in_flight:
            await asyncio.wait(session.in_flight, timeout=self._config.finish_grace_s)
        await _cancel(session.in_flight)

        # Long sessions take tens of milliseconds; nothing else touches a session that is being finished.
        return await asyncio.to_thread(self._render_export, session, request, render)

    def _render_export(
        self, session: Session, request: FinishRequest, render: Callable[[Session, Export], bytes]
    ) -> bytes:
        base = Sample(index=request.index, group_index=request.group_index, prompt=request.prompt, label=request.label)
        made = session.trajectory.export(
            base_sample=base,
            reward=request.rewards,
            filters=request.filters.at(self._weight_version()),
            extra_metadata={**session.settings.metadata, **request.metadata, "sid": session.sid},
            max_sample_tokens=request.max_sample_tokens,
            decode=self._decode,
        )
        return render(session, made)

    def _end(self, session: Session) -> None:
        self._live.pop(session.sid, None)
        session.replies.close()
        session.feed.close()


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    current = asyncio.current_task()
    others = [task for task in tasks if task is not current]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)


def _check_name(sid: str) -> None:
    if len(sid) > MAX_NAME_LENGTH or not sid.isprintable():
        raise BadRequest(f"a session's name has at most {MAX_NAME_LENGTH} printable characters", field="sid")
