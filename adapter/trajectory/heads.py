"""Heads: what stands before the first message of a prompt and cannot be changed by appending to it.

Every head has a root of its own in a session's forest. System messages belong to no head: they are messages.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from adapter.trajectory.reasons import Reason
from adapter.types import Tool

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Head:
    """Digests of the tools and of the template options, and the model's name. Equal heads render alike.

    Ids mean the same under all heads of one ``vocabulary``, a name for the tokenizer: nothing is carried from one to another.
    """

    tools: bytes = b""
    model: str = ""
    options: bytes = b""
    vocabulary: str = ""

    @classmethod
    def of(
        cls,
        tools: Sequence[Tool] = (),
        model: str | None = None,
        options: Mapping[str, Any] | None = None,
        vocabulary: str = "",
    ) -> Head:
        """Neither the order of the tools nor that of the keys in them counts: a prompt that is kept has them already."""
        listed = b"".join(sorted(_digest(tool) for tool in tools))
        return cls(
            tools=_digest_of_bytes(listed) if listed else b"",
            model=model or "",
            options=_digest(dict(options)) if options else b"",
            vocabulary=vocabulary,
        )

    def fork_reason(self, other: Head) -> Reason:
        """What makes a conversation that is known under ``other`` a new one here."""
        if self.model != other.model:
            return Reason.FORK_MODEL
        if self.tools != other.tools:
            return Reason.FORK_TOOLS
        return Reason.FORK_SYSTEM if self.options == other.options else Reason.FORK_OPTIONS

    @classmethod
    def from_dict(cls, saved: Mapping[str, str]) -> Head:
        """The inverse of ``to_dict``."""
        tools, options = bytes.fromhex(saved["tools"]), bytes.fromhex(saved["options"])
        return cls(tools, saved["model"], options, saved.get("vocabulary", ""))

    def to_dict(self) -> dict[str, str]:
        """JSON-ready; digests in hexadecimal, empty where there is nothing."""
        saved = {"tools": self.tools.hex(), "model": self.model, "options": self.options.hex()}
        return {**saved, "vocabulary": self.vocabulary} if self.vocabulary else saved


NO_HEAD = Head()


def _digest(value: Any) -> bytes:
    return _digest_of_bytes(_canonical(value))


def _canonical(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer of more than 64 bits, a lone surrogate
        return json.dumps(value, sort_keys=True, default=repr).encode()


def _digest_of_bytes(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
