"""What is written down of sessions: one frame for each thing that must be there again after a crash.

    open         before the session is used
    turn         inside the commit, before anything of the trajectory changes: what cannot be recorded does not happen. In the
                 same frame the wire of the reply, for a client that asks again; ``delivered`` once nobody will. And the stored
                 response, for a client that comes back to it; ``response_deleted`` once it has deleted it
    interrupted  the same for a reply that was cut off
    reply        the wire of a reply that has several turns
    response     a stored response that has no turn
    weights      new weights are in force: a note for people, which a compaction may remove
    finish, drop

``settled`` waits until everything recorded so far is on the disk; the last event of a reply, and the answer to ``finish``, wait for
it. Each frame carries its number in its session, so that a gap is seen. Without a journal (``Unrecorded``) nothing is kept.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from adapter.errors import Unavailable
from adapter.logs import event
from adapter.records import ReplyRecord, ResponseRecord
from adapter.storage.catalog import Catalog, Wire
from adapter.storage.compaction import Compactor
from adapter.storage.frames import Extent, Frame, FrameKind
from adapter.storage.journal import Journal, JournalFailed
from adapter.trajectory import SavedTurn

logger = logging.getLogger("rollserve.journal")

RETRY_AFTER_S = 5.0
"""After a frame that could not be written: a full disk may have room again."""


class Recorder(Protocol):
    """See the module. Each method but ``delivered`` raises Unavailable (503) if it cannot record; then nothing was recorded."""

    @property
    def failure(self) -> str | None:
        """Why nothing can be recorded at present."""
        ...

    def opened(self, sid: str, settings: Mapping[str, Any]) -> None: ...

    @property
    def keeps(self) -> bool:
        """Whether anything is recorded at all; if not, nobody need prepare it."""
        ...

    def turn(
        self, sid: str, saved: SavedTurn, reply: ReplyRecord | None = None, response: ResponseRecord | None = None
    ) -> None: ...

    def interrupted(self, sid: str, saved: SavedTurn) -> None: ...

    def reply(self, sid: str, reply: ReplyRecord) -> None: ...

    def response(self, sid: str, response: ResponseRecord) -> None: ...

    def response_deleted(self, sid: str, response_id: str) -> None: ...

    def delivered(self, sid: str, number: int) -> None: ...

    def finished(
        self, sid: str, body: Mapping[str, Any], finished_at: float, answer: bytes, key_fingerprint: str | None = None
    ) -> None: ...

    def dropped(self, sid: str) -> None: ...

    def forgotten(self, sid: str) -> None:
        """Nobody will ask for a finished session any more. Needs no record: who starts again comes to the same."""
        ...

    def weights(self, model: str, version: int, path: str | None) -> None:
        """A served model has new weights. Raises nothing: they are in force, recorded or not."""
        ...

    def frames(self, sid: str) -> Iterator[Frame]:
        """Everything recorded of a live session. Raises: StorageError."""
        ...

    def answer(self, sid: str) -> bytes | None:
        """What a finished session's finish answered, if it is still kept. Raises: StorageError."""
        ...

    async def settled(self) -> None: ...


class Unrecorded:
    """Durability ``none``."""

    failure: str | None = None
    keeps = False

    def opened(self, sid: str, settings: Mapping[str, Any]) -> None:
        pass

    def turn(
        self, sid: str, saved: SavedTurn, reply: ReplyRecord | None = None, response: ResponseRecord | None = None
    ) -> None:
        pass

    def interrupted(self, sid: str, saved: SavedTurn) -> None:
        pass

    def reply(self, sid: str, reply: ReplyRecord) -> None:
        pass

    def response(self, sid: str, response: ResponseRecord) -> None:
        pass

    def response_deleted(self, sid: str, response_id: str) -> None:
        pass

    def delivered(self, sid: str, number: int) -> None:
        pass

    def finished(
        self, sid: str, body: Mapping[str, Any], finished_at: float, answer: bytes, key_fingerprint: str | None = None
    ) -> None:
        pass

    def dropped(self, sid: str) -> None:
        pass

    def forgotten(self, sid: str) -> None:
        pass

    def weights(self, model: str, version: int, path: str | None) -> None:
        pass

    def frames(self, sid: str) -> Iterator[Frame]:
        return iter(())

    def answer(self, sid: str) -> bytes | None:
        return None

    async def settled(self) -> None:
        pass


@dataclass(slots=True)
class JournalRecorder:
    """Records in ``journal``; ``catalog`` says where. ``counts``: how many frames each live session has had.

    ``compactor`` is asked whenever more of the journal may be dead.
    """

    journal: Journal
    catalog: Catalog
    counts: dict[str, int] = field(default_factory=dict)
    compactor: Compactor | None = None

    @property
    def keeps(self) -> bool:
        return True

    @property
    def failure(self) -> str | None:
        return self.journal.failure

    def opened(self, sid: str, settings: Mapping[str, Any]) -> None:
        self._record(FrameKind.OPEN, sid, settings)

    def turn(
        self, sid: str, saved: SavedTurn, reply: ReplyRecord | None = None, response: ResponseRecord | None = None
    ) -> None:
        header, arrays = dict(saved.header), dict(saved.arrays)
        if reply is not None:
            header["reply"] = reply.header()
            arrays |= reply.arrays()
        if response is not None:
            header["response"] = response.header()
            arrays |= response.arrays()
        self._record(FrameKind.TURN, sid, header, arrays)

    def interrupted(self, sid: str, saved: SavedTurn) -> None:
        self._record(FrameKind.INTERRUPTED, sid, saved.header, saved.arrays)

    def reply(self, sid: str, reply: ReplyRecord) -> None:
        self._record(FrameKind.REPLY, sid, {"reply": reply.header()}, reply.arrays())

    def response(self, sid: str, response: ResponseRecord) -> None:
        self._record(FrameKind.RESPONSE, sid, {"response": response.header()}, response.arrays())

    def response_deleted(self, sid: str, response_id: str) -> None:
        self._record(FrameKind.RESPONSE_DELETED, sid, {"response_id": response_id})

    def delivered(self, sid: str, number: int) -> None:
        if sid not in self.counts:
            return  # the session is over
        try:
            self._record(FrameKind.DELIVERED, sid, {"number": number})
            self.catalog.delivered(sid, number)
            self._consider()
        except Unavailable as error:
            # The client has its reply; should it ask again after a crash, it is given the same once more.
            event(logger, logging.WARNING, "delivery_not_recorded", sid=sid, message=str(error))

    def finished(
        self, sid: str, body: Mapping[str, Any], finished_at: float, answer: bytes, key_fingerprint: str | None = None
    ) -> None:
        header = {"body": dict(body), "finished_at": finished_at, "key_fingerprint": key_fingerprint}
        extent = self._record(FrameKind.FINISH, sid, header, {"answer": np.frombuffer(answer, np.uint8)})
        self.catalog.finish(sid, self.journal.segment, extent)
        self.counts.pop(sid, None)
        self._consider()

    def dropped(self, sid: str) -> None:
        self._record(FrameKind.DROP, sid, {})
        self.forgotten(sid)

    def forgotten(self, sid: str) -> None:
        self.catalog.forget(sid)
        self.counts.pop(sid, None)
        self._consider()

    def weights(self, model: str, version: int, path: str | None) -> None:
        try:
            self.journal.append(
                Frame(FrameKind.WEIGHTS, {"model": model, "version": version, "path": path, "at": time.time()}, {})
            )
        except JournalFailed as error:
            event(logger, logging.WARNING, "weights_not_recorded", version=version, message=str(error))

    def frames(self, sid: str) -> Iterator[Frame]:
        return self.catalog.frames(sid)

    def answer(self, sid: str) -> bytes | None:
        frame = self.catalog.last_frame(sid)
        return None if frame is None else frame.arrays["answer"].tobytes()

    async def settled(self) -> None:
        """Raises: Unavailable."""
        try:
            await self.journal.synced(self.journal.written)
        except JournalFailed as error:
            raise _unavailable(error) from error

    def _consider(self) -> None:
        if self.compactor is not None:
            self.compactor.consider()

    def _record(
        self, kind: FrameKind, sid: str, header: Mapping[str, Any], arrays: Mapping[str, Any] | None = None
    ) -> Extent:
        number = self.counts.get(sid, 0)
        frame = Frame(kind, {"sid": sid, "n": number, **header}, arrays or {})
        try:
            extent = self.journal.append(frame)
        except JournalFailed as error:
            raise _unavailable(error) from error
        self.counts[sid] = number + 1
        self.catalog.add(sid, self.journal.segment, extent, Wire.of(frame))
        return extent


def _unavailable(error: JournalFailed) -> Unavailable:
    return Unavailable(f"the turn cannot be recorded: {error}", retry_after=RETRY_AFTER_S)
