"""A session out of its frames in a journal: the trajectory as it was, replies that nobody has fetched, and the counters that ids
and handles come from.

The first frame says how the session was opened. What runs on from there (feeds) begins anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from adapter.footprint import turn_bytes
from adapter.records import ReplyRecord, ResponseRecord
from adapter.replies import ReplyBook
from adapter.responses import ResponseStore, StoredResponse, following
from adapter.storage.frames import Frame, FrameKind
from adapter.trajectory import SavedTurn, Trajectory
from adapter.types import HistoryPolicy


@dataclass(frozen=True, slots=True)
class Terms:
    """How a session was opened: the body, and what the server's settings were, which may be others by now."""

    settings: Mapping[str, Any]
    policy: HistoryPolicy
    fork_threshold_tokens: int
    created_at: float
    """Unix time, seconds."""
    key_fingerprint: str | None = None
    """Of the session's access key, if it was opened with one."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return dataclasses.asdict(self)

    @classmethod
    def read(cls, frame: Frame) -> Terms:
        """Raises: ValueError, if this is not what opened a session."""
        if frame.kind != FrameKind.OPEN:
            raise ValueError("the frame that opened the session is missing")
        names = [each.name for each in dataclasses.fields(cls) if each.name != "key_fingerprint"]
        values = {name: frame.header[name] for name in names}
        values["key_fingerprint"] = frame.header.get("key_fingerprint")
        return cls(**{**values, "policy": HistoryPolicy(values["policy"])})


@dataclass(slots=True)
class Restored:
    """What a session had beside its trajectory."""

    turns_started: int = 0
    replies: dict[int, ReplyRecord] = field(default_factory=dict)
    """By number; those that were delivered are left out."""
    reply_of: dict[int, int] = field(default_factory=dict)
    """Turn -> the number of its reply, where that is one turn."""
    last_reply: int = 0
    size: int = 0
    """Bytes that the turns take in memory, about."""
    responses: ResponseStore = field(default_factory=ResponseStore)
    responses_made: dict[str, StoredResponse] = field(default_factory=dict)
    """Those that are not kept any more too: later ones come after them."""

    def give_back(self, book: ReplyBook) -> None:
        """Into the book of a session that has had no reply yet. Stored responses find their events there, if it has them."""
        for record in self.replies.values():
            reply = book.restore(record)
            response = self.responses.get(record.wire_id or "")
            if response is not None:
                response.reply = reply
        book.counted(self.last_reply)

    def take_response(self, record: ResponseRecord) -> None:
        """Raises: LookupError, if it comes after one that was not recorded before it."""
        before = None if record.after is None else self.responses_made[record.after.response_id]
        response = following(before, record)
        self.responses_made[record.response_id] = response
        self.responses.restore(record.response_id, response)


def restore_trajectory(trajectory: Trajectory, frames: Iterator[Frame]) -> Restored:
    """Fill an empty trajectory from what followed the session's first frame. Raises: TrajectoryDamaged, StorageError."""
    restored = Restored()
    trajectory.rebuild(_turns(frames, restored))
    restored.responses_made.clear()
    # The mark of a delivery is not waited for. Where the client went on from a reply, it had it.
    for turn in trajectory.gone_on_from():
        restored.replies.pop(restored.reply_of.get(turn, 0), None)
    return restored


def _turns(frames: Iterator[Frame], restored: Restored) -> Iterator[tuple[SavedTurn, bool]]:
    for frame in frames:
        match frame.kind:
            case FrameKind.TURN | FrameKind.INTERRUPTED:
                restored.turns_started = max(restored.turns_started, frame.header["number"] or 0)
                saved = SavedTurn(frame.header, frame.arrays)
                restored.size += turn_bytes(saved)
                yield saved, frame.kind == FrameKind.TURN
            case FrameKind.DELIVERED:
                # The frame of a reply that was delivered may have lost it to a compaction; its number counts all the same.
                restored.replies.pop(frame.header["number"], None)
                restored.last_reply = max(restored.last_reply, frame.header["number"])
            case FrameKind.RESPONSE_DELETED:
                restored.responses.delete(frame.header["response_id"])
        response = ResponseRecord.of(frame)
        if response is not None:
            restored.take_response(response)
        reply = ReplyRecord.of(frame)
        if reply is not None:
            restored.replies[reply.number] = reply
            if frame.kind == FrameKind.TURN:
                restored.reply_of[frame.header["number"]] = reply.number
            restored.last_reply = max(restored.last_reply, reply.number)
