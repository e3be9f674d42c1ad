"""What a journal keeps of an answer, beside the turn that it was.

The reply   its wire, for the same request again; dead once it was delivered
The stored response (OpenAI Responses)   what a client comes back to by its id, as long as the session lives

Both are members of a frame's header, ``reply`` and ``response``, with arrays of their own. A reader that does not know them passes
over them, and a frame without them is one of a turn that had none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapter.storage.catalog import WIRE
from adapter.storage.frames import Frame

RESPONSE_INPUT = "response_input"
RESPONSE_BODY = "response_body"
BESIDE_THE_TURN = frozenset({WIRE, RESPONSE_INPUT, RESPONSE_BODY})
"""Arrays of a turn's frame that are not the turn's."""


@dataclass(frozen=True, slots=True)
class ReplyRecord:
    """A complete reply as it is on the wire, and the request that it answers, by ``digest`` (see ``replies.digest``)."""

    number: int
    route: str
    digest: str
    key: str | None
    wire_id: str | None
    headers: Mapping[str, str]
    wire: bytes

    def header(self) -> dict[str, Any]:
        """All but the wire, JSON-ready."""
        return {
            "number": self.number,
            "route": self.route,
            "digest": self.digest,
            "key": self.key,
            "wire_id": self.wire_id,
            "headers": dict(self.headers),
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {WIRE: _bytes(self.wire)}

    @classmethod
    def of(cls, frame: Frame) -> ReplyRecord | None:
        """The reply that a frame of a turn or of a reply holds, if it holds one."""
        saved = frame.header.get("reply")
        return None if saved is None else cls(**saved, wire=frame.arrays[WIRE].tobytes())


@dataclass(frozen=True, slots=True)
class Place:
    """A point in what is stored: behind the input of a response, or, with ``output``, behind its output."""

    response_id: str
    output: bool


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """A stored response that has ended. ``input`` is a JSON array: those of its items that come ``after`` what is stored already.

    So a conversation is written down once, whether its client names the response before or sends all of it again each time.
    """

    response_id: str
    after: Place | None
    streamed: bool
    background: bool
    complete: bool
    """Whether a conversation can go on from it; not if it failed or was cancelled."""
    input: bytes
    body: bytes
    """The response object, JSON."""

    def header(self) -> dict[str, Any]:
        """All but the texts, JSON-ready."""
        return {
            "id": self.response_id,
            "after": None if self.after is None else {"id": self.after.response_id, "output": self.after.output},
            "streamed": self.streamed,
            "background": self.background,
            "complete": self.complete,
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {RESPONSE_INPUT: _bytes(self.input), RESPONSE_BODY: _bytes(self.body)}

    @classmethod
    def of(cls, frame: Frame) -> ResponseRecord | None:
        """The stored response that a frame holds, if it holds one. Raises: LookupError, if part of it is missing."""
        saved = frame.header.get("response")
        if saved is None:
            return None
        after = saved["after"]
        return cls(
            saved["id"],
            None if after is None else Place(after["id"], after["output"]),
            saved["streamed"],
            saved["background"],
            saved["complete"],
            frame.arrays[RESPONSE_INPUT].tobytes(),
            frame.arrays[RESPONSE_BODY].tobytes(),
        )


@dataclass(frozen=True, slots=True)
class Answered:
    """What is recorded with a turn of the answer that it is."""

    reply: ReplyRecord | None = None
    response: ResponseRecord | None = None


def _bytes(text: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(text, np.uint8)
