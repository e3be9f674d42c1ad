"""Access keys: the operator's own, and one for each session, minted when it is opened.

    rs-SECRET.SID      SECRET: 32 characters of base64url, 192 random bits

A session's key names its session, so whoever is shown one knows whom to ask, another worker included; nothing is looked up by a
secret. Of a key only its keyed hash is kept, with the session and in its journal. Without an admin key access keys are off, and
whatever clients send is the name of a session.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass

from adapter.handles import Handles

PREFIX = "rs-"
SECRET_BYTES = 24
_SECRET_LENGTH = SECRET_BYTES * 8 // 6


@dataclass(frozen=True, slots=True)
class MintedKey:
    """``text`` is for the client, once; ``fingerprint`` is what is kept of it."""

    text: str
    fingerprint: str


class AccessKeys:
    """Whose key a text is. Comparisons take as long for a wrong key as for the right one."""

    def __init__(self, admin_key: str | None = None, handles: Handles | None = None) -> None:
        """``handles`` has the key that fingerprints are made with; one that stays lets session keys outlast a restart."""
        self._handles = handles or Handles()
        self._admin = None if admin_key is None else self._handles.fingerprint(admin_key)

    @property
    def on(self) -> bool:
        return self._admin is not None

    def is_admin(self, text: str) -> bool:
        return self._admin is not None and hmac.compare_digest(self._handles.fingerprint(text), self._admin)

    def mint(self, sid: str) -> MintedKey | None:
        """A key for a session that is being opened; None where access keys are off."""
        if not self.on:
            return None
        text = f"{PREFIX}{secrets.token_urlsafe(SECRET_BYTES)}.{sid}"
        return MintedKey(text, self._handles.fingerprint(text))

    def matches(self, text: str, fingerprint: str) -> bool:
        return hmac.compare_digest(self._handles.fingerprint(text), fingerprint)


def named_by(text: str) -> str | None:
    """The session that a key claims to be of; None for what cannot be a session's key."""
    secret, sid = text[len(PREFIX) :][:_SECRET_LENGTH], text[len(PREFIX) + _SECRET_LENGTH :]
    is_key = text.startswith(PREFIX) and len(secret) == _SECRET_LENGTH and sid.startswith(".") and len(sid) > 1
    return sid[1:] if is_key else None
