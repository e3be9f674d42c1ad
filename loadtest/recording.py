"""What the load generator writes down, for Locust and for the report.

turns.jsonl    one line a turn that ended: at (Unix s), protocol, ttft_ms, gap_ms (the longest), gaps, turn_ms, output_tokens,
               error (null if it ended well), left (the client went away on purpose)
lags.jsonl     one line a second: at, lag_ms (the longest in it), users' requests under way
exports/SID    the answer of ``finish``;  seen/SID   the turns that the client saw to their end
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from loadtest.judge import Seen

Fire = Callable[..., Any]


@dataclass(slots=True)
class TurnRecord:
    """One request for a reply. Times in milliseconds; ``gap_ms`` is the longest silence between two pieces of output."""

    protocol: str
    at: float = 0.0
    ttft_ms: float = 0.0
    gap_ms: float = 0.0
    pieces: int = 0
    turn_ms: float = 0.0
    output_tokens: int = 0
    error: str | None = None
    left: bool = False


class Recording:
    """Files in ``folder``. ``fire`` is Locust's event for a request."""

    def __init__(self, folder: Path, fire: Fire) -> None:
        for name in ("exports", "seen"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self._folder, self._fire = folder, fire
        self._turns = (folder / "turns.jsonl").open("wb", buffering=0)
        self._lags = (folder / "lags.jsonl").open("wb", buffering=0)
        self._worst, self._second = 0.0, 0

    def turn(self, record: TurnRecord) -> None:
        self._turns.write(orjson.dumps(asdict(record)) + b"\n")
        error = None if record.error is None else RuntimeError(record.error)
        self._request("TURN", record.protocol, record.turn_ms, error, record.output_tokens)
        if record.pieces:
            self._request("TTFT", record.protocol, record.ttft_ms)
        if record.pieces > 1:
            self._request("GAP", record.protocol, record.gap_ms)

    def session(self, name: str, took_ms: float, error: str | None) -> None:
        self._request("SESSION", name, took_ms, None if error is None else RuntimeError(error))

    def finished(self, sid: str, export: bytes, seen: Sequence[Seen]) -> None:
        (self._folder / "exports" / sid).write_bytes(export)
        self.unfinished(sid, seen)

    def unfinished(self, sid: str, seen: Sequence[Seen]) -> None:
        """A session whose export could not be had: its turns count as lost."""
        (self._folder / "seen" / sid).write_bytes(orjson.dumps([asdict(each) for each in seen]))

    def lag(self, seconds: float) -> None:
        self._worst = max(self._worst, seconds)
        if (second := int(time.time())) != self._second:
            self._lags.write(orjson.dumps({"at": second, "lag_ms": round(self._worst * 1000, 2)}) + b"\n")
            self._worst, self._second = 0.0, second

    def _request(self, kind: str, name: str, ms: float, error: Exception | None = None, length: int = 0) -> None:
        self._fire(request_type=kind, name=name, response_time=ms, response_length=length, exception=error, context={})
