"""Handles: opaque references from what a client replays to the turn that it came from.

Ids that clients echo verbatim (tool-call ids, thinking signatures, item ids) carry one. A replayed assistant message then finds its
true turn even if the client dropped the thinking, re-ordered JSON keys or trimmed white space.

    base64url( turn u32 | block u16 | MAC, 9 bytes )        20 characters of [A-Za-z0-9_-], no padding

The MAC is keyed BLAKE2b over turn, block and the session's name, so a handle is valid in its own session only and cannot be guessed
(2^-72 a try).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import struct
from dataclasses import dataclass

from adapter.ids import IdSource, RandomIds

KEY_BYTES = 32
_BODY = struct.Struct(">IH")
_MAC_BYTES = 9
_LENGTH = (_BODY.size + _MAC_BYTES) * 8 // 6
_FINGERPRINT = b"access key"
"""So that a fingerprint is never the MAC of anything."""
_MANY_TURNS = 2**20
_MANY_BLOCKS = 2**10
"""More turns than a session has, and more ids than a reply."""


@dataclass(frozen=True, slots=True)
class Handle:
    """``turn`` is the number of a turn in its session, counted by start; ``block`` tells the ids of one reply apart."""

    turn: int
    block: int


def claimed_turn(text: str) -> int | None:
    """The turn that the handle at the end of ``text`` speaks of, unchecked; None where nothing there looks like one.

    Enough to tell the ids of two replies apart, not to believe them. By chance one id in 2^18 looks like a handle.
    """
    body = _decoded(text)
    turn, block = _BODY.unpack(body[: _BODY.size]) if body is not None else (_MANY_TURNS, 0)
    return turn if turn < _MANY_TURNS and block < _MANY_BLOCKS else None


def _decoded(text: str) -> bytes | None:
    """The bytes that the end of ``text`` spells, if it can be a handle."""
    encoded = text[-_LENGTH:]
    if len(encoded) < _LENGTH or not encoded.isascii():
        return None
    try:
        return base64.urlsafe_b64decode(encoded)
    except ValueError:
        return None


class Handles:
    """Mints and reads handles under one key. Whoever has the key can forge them."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(KEY_BYTES)

    def mint(self, sid: str, handle: Handle) -> str:
        body = _BODY.pack(handle.turn, handle.block)
        return base64.urlsafe_b64encode(body + self._mac(sid, body)).decode()

    def read(self, sid: str, text: str) -> Handle | None:
        """The handle at the end of ``text`` (after ``toolu_``, ``call_``), if it is ours and of this session."""
        raw = _decoded(text)
        if raw is None:
            return None
        body, mac = raw[: _BODY.size], raw[_BODY.size :]
        if not hmac.compare_digest(mac, self._mac(sid, body)):
            return None
        return Handle(*_BODY.unpack(body))

    def fingerprint(self, secret: str) -> str:
        """What is kept of a secret, in hexadecimal: a keyed hash, which without the key says nothing about it."""
        data = secret.encode(errors="backslashreplace")
        return hashlib.blake2b(data, digest_size=32, key=self._key, person=_FINGERPRINT).hexdigest()

    def _mac(self, sid: str, body: bytes) -> bytes:
        # Body first: it has a fixed length, so no two pairs give the same input.
        return hashlib.blake2b(body + sid.encode(), digest_size=_MAC_BYTES, key=self._key).digest()


class TurnIds:
    """The ids of one reply: each carries a handle of its turn, in place of random characters."""

    def __init__(self, handles: Handles, sid: str, turn: int) -> None:
        self._handles = handles
        self._sid = sid
        self._turn = turn
        self._block = 0

    def new(self, prefix: str, length: int) -> str:
        """``length`` is for sources of plain ids; a handle has its own."""
        del length
        self._block += 1
        return prefix + self._handles.mint(self._sid, Handle(self._turn, self._block))


class HandleIds(RandomIds):
    """The real source: random ids, and for each turn a source whose ids are handles."""

    def __init__(self, handles: Handles) -> None:
        self._handles = handles

    def for_turn(self, sid: str, turn: int) -> IdSource:
        return TurnIds(self._handles, sid, turn)

    def turn_of(self, sid: str, issued: str) -> int | None:
        handle = self._handles.read(sid, issued)
        return None if handle is None else handle.turn
