"""Sessions of this process: open, find, finish, drop; out of memory and back.

A session lives from its first request, or from ``POST /v1/sessions``, until it is finished or dropped. Everything that touches one
runs on one event loop, so nothing here is locked. The in-flight set holds the tasks of turns that are being made; a turn joins the
trajectory when it is committed, and what was sampled of one that ends early is set aside there.

    stored ◄──spilled, found──► OPEN ──finish──► FINISHING ──exported──► finished: the answer is kept for a repeated finish,
                                                                         turns are answered with 410

A session that is stored is in the journal only. Everything recorded of it is there, so spilling one is forgetting it; one that
somebody would miss something of is not spilled (``Session.in_use``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from adapter.config import Config
from adapter.errors import Conflict, Gone, NotFound, SessionDamaged, TooManyRequests
from adapter.exporting import Exporting, Render, cancel
from adapter.feed import SessionFeed
from adapter.finished import Finished, FinishedSessions
from adapter.loading import UNREADABLE, Loading
from adapter.ownership import Ownership
from adapter.recorder import Recorder, Unrecorded
from adapter.replies import ReplayBudget, ReplyBook
from adapter.restoring import Restored, Terms
from adapter.session import Session, SessionState, StoredSession, check_name
from adapter.session_bodies import FinishRequest, SessionSettings
from adapter.storage.errors import StorageError
from adapter.storage.recovery import Recovered
from adapter.tally import SessionEvent, SessionTally
from adapter.trajectory import Trajectory, VersionOf

__all__ = ["Session", "SessionState", "Sessions"]

ROOM_RETRY_S = 5.0
"""Turns take seconds; a session can be spilled when its last one has ended."""


class Sessions:
    """All sessions that this process owns.

    ``decode`` turns the ids of a sample's response into text, by the name of their model; ``weight_version`` gives what that
    model's engine has, for filters by staleness.
    ``recovered`` is what the journal behind ``recorder`` held: its sessions come into memory when they are first asked for.
    Whatever is asked about a session of another worker (``ownership``) raises OwnedElsewhere.
    """

    def __init__(
        self,
        config: Config,
        decode: Callable[[str, list[int]], str],
        weight_version: VersionOf,
        recorder: Recorder | None = None,
        recovered: Recovered | None = None,
        ownership: Ownership | None = None,
    ) -> None:
        self._config = config
        self._ownership = ownership or Ownership()
        self._exporting = Exporting(decode, weight_version, config.finish_grace_s)
        self.recorder = recorder or Unrecorded()
        self._loading = Loading(self.recorder, self._session)
        self._live: dict[str, Session] = {}
        self._stored: dict[str, StoredSession | None] = {} if recovered is None else dict.fromkeys(recovered.catalog)
        """None where nobody has asked yet."""
        self._damaged: dict[str, str] = {} if recovered is None else recovered.damaged
        self._finished = FinishedSessions(config.keep_finished, self.recorder.forgotten)
        for each in () if recovered is None else recovered.finished.values():
            request = FinishRequest.parse(each.body)
            self._finished.add(each.sid, Finished(request, each.finished_at, None, each.key_fingerprint))
        self.replays = ReplayBudget(config.replay_total_bytes, config.replay_keep_s)
        self.tally = SessionTally()

    @property
    def slot(self) -> int:
        """Of the worker that this is."""
        return self._ownership.slot

    def new_name(self) -> str:
        """A name that no session has, for one that this process is to own."""
        return self._ownership.new_name()

    def open(self, sid: str, settings: SessionSettings, key_fingerprint: str | None = None) -> Session:
        """A new session. Raises: Conflict, if the name was ever used; BadRequest, if it is no name."""
        check_name(sid)
        if self.known(sid) is not None or sid in self._finished:
            raise Conflict(f"session {sid!r} exists already", field="sid")
        self._require_room()
        terms = Terms(
            settings=settings.source,
            policy=settings.policy or self._config.history_policy,
            fork_threshold_tokens=self._config.fork_threshold_tokens,
            created_at=time.time(),
            key_fingerprint=key_fingerprint,
        )
        self.recorder.opened(sid, terms.to_dict())
        self._live[sid] = self._session(sid, settings, terms)
        self.tally.count(SessionEvent.OPENED)
        return self._live[sid]

    def find(self, sid: str) -> Session:
        """A live session. Raises: Gone, if it is finished; NotFound; SessionDamaged."""
        session = self.known(sid)
        if session is not None:
            return session
        if sid in self._finished:
            raise Gone(f"session {sid!r} is finished")
        raise NotFound(f"there is no session {sid!r}; open it with POST /v1/sessions", field="session")

    def at_hand(self, sid: str) -> Session | None:
        """A live session that is in memory, or None."""
        return self._live.get(sid)

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
        known = self._known_of_stored(sid) if sid in self._stored else self._live.get(sid)
        return None if known is None else known.key_fingerprint

    def opened_at(self, sid: str) -> float | None:
        """When a live session was opened, Unix time in seconds. None if there is none, or it is damaged."""
        known = self._known_of_stored(sid) if sid in self._stored else self._live.get(sid)
        return None if known is None else known.created_at

    def _known_of_stored(self, sid: str) -> StoredSession | None:
        known = self._stored[sid]
        if known is None:
            try:
                terms = Terms.read(next(self.recorder.frames(sid)))
            except UNREADABLE:
                return None
            known = self._stored[sid] = StoredSession(terms.created_at, terms.key_fingerprint)
        return known

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

    @property
    def stored_count(self) -> int:
        """Live sessions that are in the journal only."""
        return len(self._stored)

    @property
    def finished(self) -> int:
        """Finished sessions whose answer is kept."""
        return len(self._finished)

    def names(self) -> list[str]:
        """Of all live sessions."""
        return [*self._live, *self._stored]

    def stored(self) -> list[str]:
        """Names of live sessions that are in the journal only."""
        return sorted(self._stored)

    def _session(self, sid: str, settings: SessionSettings, terms: Terms) -> Session:
        trajectory = Trajectory(terms.fork_threshold_tokens, require_log_probs=True, policy=terms.policy)
        replies = ReplyBook(self.replays, self._config.replay_session_bytes)
        feed = SessionFeed(self._config.replay_reply_bytes, self._config.replay_keep_s)
        session = Session(sid, settings, trajectory, terms.created_at, replies, feed, self.recorder)
        session.key_fingerprint = terms.key_fingerprint
        return session

    def _load(self, sid: str) -> Session:
        """Out of the journal. Raises: SessionDamaged."""
        if sid in self._damaged:
            raise SessionDamaged(f"session {sid!r} cannot be rebuilt: {self._damaged[sid]}")
        try:
            made = self._loading.read(sid)
        except UNREADABLE as error:
            self._damaged[sid] = str(error)
            raise SessionDamaged(f"session {sid!r} cannot be rebuilt: {error}") from error
        return self._take_in(sid, *made)

    async def load(self, sid: str) -> None:
        """A session that is in the journal only comes into memory, read beside the event loop; ``find`` tells what is wrong."""
        known = self._stored.get(sid)
        if sid not in self._stored or sid in self._damaged:
            return
        made = await self._loading.read_beside(sid)
        # Whoever loaded it meanwhile may have gone on with it, and it may be stored again: then what was read is out of date.
        if made is not None and sid in self._stored and self._stored[sid] is known:
            self._take_in(sid, *made)

    def _take_in(self, sid: str, session: Session, restored: Restored) -> Session:
        known = self._stored.pop(sid)
        session.turns_started = max(restored.turns_started, known.turns_started if known is not None else 0)
        session.turns_size += restored.size
        session.responses = restored.responses
        restored.give_back(session.replies)
        self._live[sid] = session
        self.tally.count(SessionEvent.LOADED)
        return session

    def spill(self, session: Session) -> bool:
        """Out of memory, if a journal has it and nobody would miss anything."""
        if not self.recorder.keeps or session.in_use:
            return False
        self._end(session)
        self._stored[session.sid] = StoredSession(session.created_at, session.key_fingerprint, session.turns_started)
        self.tally.count(SessionEvent.SPILLED)
        return True

    def spill_to(self, limit: int) -> int:
        """Spill sessions, those first that were not used for longest, until they take ``limit`` bytes; gives what they take."""
        size = sum(session.size for session in self._live.values())
        if size > limit and self.recorder.keeps:
            for session in sorted(self._live.values(), key=lambda one: one.used_at):
                if size <= limit:
                    break
                size -= session.size if self.spill(session) else 0
        return size

    def _require_room(self) -> None:
        limit = self._config.memory_budget_bytes
        if limit is not None and self.spill_to(limit) > limit:
            raise TooManyRequests("the sessions that are open take all the memory they may", retry_after=ROOM_RETRY_S)

    async def drop(self, sid: str) -> None:
        """Forget a session and all it recorded; its turns in flight are cancelled. Raises: NotFound."""
        if sid in self._finished:
            self.recorder.dropped(sid)
            self._finished.remove(sid)
        elif sid in self._damaged:
            self.recorder.dropped(sid)
            del self._damaged[sid]
            self._stored.pop(sid, None)
        else:
            session = self.find(sid)
            session.state = SessionState.FINISHING
            await cancel(session.in_flight)
            self.recorder.dropped(sid)
            self._end(session)
        self.tally.count(SessionEvent.DROPPED)
        await self.recorder.settled()

    async def finish(self, sid: str, request: FinishRequest, render: Render) -> bytes:
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

    async def _finish(self, session: Session, request: FinishRequest, render: Render) -> bytes:
        finished_at = time.time()
        try:
            answer, ledger = await self._exporting.ended(session, request, render)
            self.recorder.finished(session.sid, request.source, finished_at, answer, session.key_fingerprint)
        except BaseException:
            session.state, session.finishing = SessionState.OPEN, None
            raise
        self._end(session)
        self.tally.finished(ledger)
        kept = None if self.recorder.keeps else answer
        self._finished.add(session.sid, Finished(request, finished_at, kept, session.key_fingerprint))
        await self.recorder.settled()
        return answer

    def preview(self, sid: str, render: Render) -> bytes:
        """What ``finish`` without any fields would answer now, or what it did answer. Raises: NotFound."""
        earlier = self._finished.get(sid)
        if earlier is not None:
            return self._answer(sid, earlier)
        session = self.find(sid)
        return render(session, self._exporting.now(session, FinishRequest()))

    def _answer(self, sid: str, finished: Finished) -> bytes:
        """Raises: SessionDamaged."""
        try:
            answer = finished.answer if finished.answer is not None else self.recorder.answer(sid)
        except StorageError as error:
            raise SessionDamaged(f"the samples of session {sid!r} cannot be read: {error}") from error
        assert answer is not None
        return answer

    def _end(self, session: Session) -> None:
        self._live.pop(session.sid, None)
        session.replies.close()
        session.feed.close()
