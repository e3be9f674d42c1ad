"""Requests of a session that begin with the same bytes: the history that was read before is read no more.

An agent sends its whole history each turn. Of a request is remembered where the text of its messages begins and where, behind a
reply, it was read to, with a hash of all bytes up to there and what those messages were (``history.Checkpoint``); never the bytes.
A later request that begins with these bytes is parsed without them: an item that occurs nowhere else stands in their place.

    {"model": ..., "messages": [ A, B, C        , D, E ], ...}         the bytes up to C are known
    {"model": ..., "messages": [ "<stand-in>"   , D, E ], ...}         what is parsed

Why that is the same: the bytes left out were once read as the items A, B, C with commas between them. If what is left is JSON whose
messages begin with the stand-in, they stand where items stand, so the whole is what is left with the items in the stand-in's place.
Whatever is not so (another first message, an edit, a body written in another way) is read as a whole.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import xxhash

from adapter.jsontext import dump_json
from adapter.protocols.history import Checkpoint

MOST = 4
"""Conversations that a session is remembered to be in: an agent's own, those of its sub-agents."""

_STAND_IN = secrets.token_hex(16)
_STAND_IN_JSON = orjson.dumps(_STAND_IN)


@dataclass(frozen=True, slots=True)
class KnownBeginning:
    """The first ``size`` bytes of a request, and what they say."""

    start: int
    """Where the text of the first message begins."""
    size: int
    seen: xxhash.xxh3_128
    """Of the bytes."""
    listed: xxhash.xxh3_128
    """Of the messages, as ``list_digest`` sees them."""
    checkpoint: Checkpoint

    def begins(self, raw: bytes) -> bool:
        return len(raw) > self.size and xxhash.xxh3_128_digest(memoryview(raw)[: self.size]) == self.seen.digest()

    def rest(self, raw: bytes, name: str) -> dict[str, Any] | None:
        """The body with what follows in its member ``name``; None if nothing does. ``raw`` begins with these bytes."""
        try:
            body = orjson.loads(b"".join([raw[: self.start], _STAND_IN_JSON, raw[self.size :]]))
        except orjson.JSONDecodeError:
            return None
        items = body.get(name) if isinstance(body, dict) else None
        if not isinstance(items, list) or len(items) < 2 or items[0] != _STAND_IN:
            return None
        return {**body, name: items[1:]}


@dataclass(slots=True)
class KnownBeginnings:
    """Of one session and protocol, the latest first."""

    _kept: list[KnownBeginning] = field(default_factory=list)

    def find(self, raw: bytes) -> KnownBeginning | None:
        """The longest that ``raw`` begins with."""
        return max((known for known in self._kept if known.begins(raw)), key=lambda known: known.size, default=None)

    def add(self, beginning: KnownBeginning, instead_of: KnownBeginning | None) -> None:
        self._kept = [beginning, *(known for known in self._kept if known is not instead_of)][:MOST]


def beginning_of(
    raw: bytes, items: Sequence[Any], checkpoint: Checkpoint, known: KnownBeginning | None
) -> KnownBeginning | None:
    """What a request makes known; ``items`` are its messages, those behind ``known`` if some were. None if it is not found in it.

    It is found where the last item stands as this server would write it, which is how JavaScript and most SDKs do.
    """
    new = items[: checkpoint.count - (0 if known is None else known.checkpoint.count)]
    try:
        first, last, text = (dump_json(value) for value in (new[0], new[-1], list(new)))
    except (RecursionError, ValueError):
        return None
    start = raw.find(first) if known is None else known.start
    behind = start if known is None else known.size
    found = raw.rfind(last, behind) if known is None else raw.find(last, behind)
    if start < 0 or found < 0:
        return None
    size = found + len(last)
    if _items(raw[behind:size], known is not None) != text:
        return None
    seen, listed = (xxhash.xxh3_128(), xxhash.xxh3_128()) if known is None else (known.seen.copy(), known.listed.copy())
    seen.update(memoryview(raw)[0 if known is None else behind : size])
    listed.update(text[1:-1] + b",")
    return KnownBeginning(start, size, seen, listed, checkpoint)


def _items(text: bytes, go_on: bool) -> bytes | None:
    """The items of an array that stand in ``text``, with a comma before them if they ``go_on``, as this server writes them."""
    try:
        items = orjson.loads((b"[0" if go_on else b"[") + text + b"]")
        return dump_json(items[1:] if go_on else items)
    except (RecursionError, ValueError):
        return None


def list_digest(items: Sequence[Any], before: xxhash.xxh3_128 | None = None) -> bytes:
    """Of a list as it is written; ``before`` of it is what was seen already."""
    seen = xxhash.xxh3_128() if before is None else before.copy()
    if items:
        seen.update(dump_json(items)[1:-1] + b",")
    return seen.digest()
